/* What the compiled kernels have in common. Include after Python.h. */
#ifndef PREFIXPILOT_BUFFERS_H
#define PREFIXPILOT_BUFFERS_H

#if defined(__GNUC__)
#define MAYBE_UNUSED __attribute__((unused))
#else
#define MAYBE_UNUSED
#endif

/* Whether a buffer has room for exactly so many 8-byte numbers; an exception is set if not. */
MAYBE_UNUSED static int fits(const Py_buffer *buffer, Py_ssize_t count)
{
    if (buffer->len == count * 8)
        return 1;
    PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes, not %zd", buffer->len, count * 8);
    return 0;
}

MAYBE_UNUSED static void release(Py_buffer *buffers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        PyBuffer_Release(&buffers[i]);
}

/* Whether a function was given as many arguments as it takes; an exception is set if not. */
MAYBE_UNUSED static int arguments(Py_ssize_t given, Py_ssize_t expected)
{
    if (given != expected)
        PyErr_Format(PyExc_TypeError, "%zd arguments were expected", expected);
    return given == expected;
}

/* A module of these functions, with further slots behind them, each with its comma; ends the file. */
#define MODULE_OF(name, doc, functions, ...)                                                                            \
    static PyModuleDef_Slot slots_of_module[] = {__VA_ARGS__ {0, NULL}};                                                \
    static struct PyModuleDef definition = {                                                                            \
        PyModuleDef_HEAD_INIT, .m_name = #name, .m_doc = doc, .m_methods = functions, .m_slots = slots_of_module,       \
    };                                                                                                                  \
    PyMODINIT_FUNC PyInit_##name(void)                                                                                  \
    {                                                                                                                   \
        return PyModuleDef_Init(&definition);                                                                           \
    }

#define MODULE(name, doc, functions) MODULE_OF(name, doc, functions, )

/* A module that has one type, and no functions. */
#define MODULE_OF_TYPE(name, doc, spec)                                                                                 \
    static int add_type(PyObject *module)                                                                               \
    {                                                                                                                   \
        PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);                                                 \
        int added = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);                                 \
        Py_XDECREF(type);                                                                                               \
        return added;                                                                                                   \
    }                                                                                                                   \
    MODULE_OF(name, doc, NULL, {Py_mod_exec, add_type}, )

#endif
