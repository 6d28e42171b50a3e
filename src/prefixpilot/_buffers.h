/* What the compiled kernels have in common: buffers of 8-byte numbers from Python. Include after Python.h. */
#ifndef PREFIXPILOT_BUFFERS_H
#define PREFIXPILOT_BUFFERS_H

/* Whether a buffer has room for exactly so many numbers; an exception is set if not. */
static int fits(const Py_buffer *buffer, Py_ssize_t count)
{
    if (buffer->len == count * 8)
        return 1;
    PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes, not %zd", buffer->len, count * 8);
    return 0;
}

static void release(Py_buffer *buffers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        PyBuffer_Release(&buffers[i]);
}

#endif
