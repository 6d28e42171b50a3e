/* Two halves of contexts, and of each block those that hold it. Include after Python.h. */
#ifndef PREFIXPILOT_HALVES_H
#define PREFIXPILOT_HALVES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Of each block its row: so many contexts hold it, these. A context is a bit. */
typedef struct {
    PyObject *rows;
    uint64_t *bits;
    int32_t *counts, count, room;
} Half;

typedef struct {
    PyObject_HEAD
    Half half[2];
    int newer;             /* which of them */
    int32_t size, words;   /* contexts, and words of 64 of them, in a half */
    int32_t used, before;  /* contexts of the newer half, and of the older */
} Halves;

static inline int count_bits(uint64_t word)
{
    word -= word >> 1 & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
    word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (int)(word * 0x0101010101010101u >> 56);
}

static int64_t bits_in(const uint64_t *bits, Py_ssize_t words)
{
    int64_t count = 0;
    for (Py_ssize_t i = 0; i < words; i++)
        count += count_bits(bits[i]);
    return count;
}

/* The row of a block; -1: it has none; -2: an error. A block may be of a class that compares as it likes. */
static int32_t row_of(const Half *half, PyObject *block)
{
    PyObject *rows = Py_NewRef(half->rows);
    PyObject *row = PyDict_GetItemWithError(rows, block);
    int32_t at = row != NULL ? (int32_t)PyLong_AsLong(row) : PyErr_Occurred() ? -2 : -1;
    Py_DECREF(rows);
    return at < half->count ? at : -1;
}

static int room_for_row(Half *half, int32_t words)
{
    if (half->count < half->room)
        return 1;
    int32_t room = half->room ? half->room * 2 : 64;
    if (half->room > INT32_MAX / 2)
        return 0;
    uint64_t *bits = realloc(half->bits, (size_t)room * (size_t)words * sizeof(uint64_t));
    half->bits = bits == NULL ? half->bits : bits;
    int32_t *counts = bits == NULL ? NULL : realloc(half->counts, (size_t)room * sizeof(int32_t));
    if (counts == NULL)
        return 0;
    half->counts = counts;
    half->room = room;
    return 1;
}

/* A new row for a block; -2 is an error. */
static int32_t new_row(Half *half, PyObject *block, int32_t words)
{
    if (!room_for_row(half, words)) {
        PyErr_NoMemory();
        return -2;
    }
    int32_t at = half->count++;
    memset(half->bits + (size_t)at * (size_t)words, 0, (size_t)words * sizeof(uint64_t));
    half->counts[at] = 0;
    PyObject *rows = Py_NewRef(half->rows), *row = PyLong_FromLong(at);
    int kept = row != NULL && PyDict_SetItem(rows, block, row) == 0;
    Py_XDECREF(row);
    Py_DECREF(rows);
    return kept && at < half->count ? at : -2;
}

static int clear_half(Half *half)
{
    PyObject *rows = PyDict_New();
    if (rows == NULL)
        return 0;
    half->count = 0;
    Py_XSETREF(half->rows, rows);
    return 1;
}

/* In how many contexts a block stood; -1 is an error. */
static int64_t count_of(const Halves *self, PyObject *block)
{
    int64_t count = 0;
    for (int i = 0; i < 2; i++) {
        int32_t at = row_of(&self->half[i], block);
        if (at == -2)
            return -1;
        count += at < 0 ? 0 : self->half[i].counts[at];
    }
    return count;
}

/* The contexts that hold a block, of both halves. */
static int holders_of(const Halves *self, PyObject *block, uint64_t *bits)
{
    size_t words = (size_t)self->words;
    for (int i = 0; i < 2; i++) {
        int32_t at = row_of(&self->half[i], block);
        if (at == -2)
            return 0;
        if (at < 0)
            memset(bits + (size_t)i * words, 0, words * sizeof(uint64_t));
        else
            memcpy(bits + (size_t)i * words, self->half[i].bits + (size_t)at * words, words * sizeof(uint64_t));
    }
    return 1;
}

#endif
