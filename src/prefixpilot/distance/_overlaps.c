/* Pairs of contexts that share a block, compiled: what `_Overlaps._pairs` of prefixpilot/distance/pairwise.py counts. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_buffers.h"

#include <stdint.h>
#include <stdlib.h>

/* As `_Overlaps` has them; `place` and `behind` are those of each block of each context. */
typedef struct {
    Py_ssize_t n, total;
    const int64_t *ends, *place, *behind, *holders, *held_at;
    int64_t unit;
} Overlaps;

typedef struct {
    Py_ssize_t count, room;
    int64_t *cells, *sums;
} PairSums;

/* The sums of one row with the contexts behind it, into `sum`; the bits of those it meets are set. */
static int meet(const Overlaps *all, Py_ssize_t row, int64_t *sum, uint64_t *met)
{
    for (int64_t e = all->ends[row]; e < all->ends[row + 1]; e++) {
        int64_t at = all->place[e], stop = at + all->behind[e];
        if (at < 0 || stop < at || stop >= all->total)
            return 0;
        int64_t own = all->held_at[at];
        while (++at <= stop) {
            int64_t other = all->holders[at], apart = all->held_at[at] - own;
            if (other <= row || other >= all->n)
                return 0;
            sum[other] += (apart < 0 ? -apart : apart) + all->unit;
            met[other >> 6] |= (uint64_t)1 << (other & 63);
        }
    }
    return 1;
}

/* What a row has met, in the order of the contexts; `sum` and `met` are zeros again. */
static int collect(const Overlaps *all, Py_ssize_t row, int64_t *sum, uint64_t *met, PairSums *pairs)
{
    for (Py_ssize_t word = row >> 6; word <= (all->n - 1) >> 6; word++)
        for (int bit = 0; met[word]; bit++, met[word] >>= 1) {
            while (!(met[word] & 0xff)) {
                met[word] >>= 8;
                bit += 8;
            }
            if (!(met[word] & 1))
                continue;
            int64_t other = word * 64 + bit;
            if (pairs->count == pairs->room)
                return 0;
            pairs->cells[pairs->count] = row * all->n + other;
            pairs->sums[pairs->count++] = sum[other];
            sum[other] = 0;
        }
    return 1;
}

PyDoc_STRVAR(pair_sums_doc, "pair_sums(first, stop, ends, place, behind, holders, held_at, unit, cells, sums)\n"
                            "-> number of pairs written");

static PyObject *pair_sums(PyObject *module, PyObject *args)
{
    Py_buffer in[5], out[2];
    Py_ssize_t first, stop;
    long long unit;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "nny*y*y*y*y*Lw*w*", &first, &stop, &in[0], &in[1], &in[2], &in[3], &in[4], &unit,
                          &out[0], &out[1]))
        return NULL;
    Py_ssize_t n = in[0].len / 8 - 1, total = in[1].len / 8, room = out[0].len / 8;
    const int64_t *ends = in[0].buf;
    if (n >= 1 && fits(&in[2], total) && fits(&in[3], total) && fits(&in[4], total) && fits(&out[1], room)) {
        Overlaps all = {n, total, ends, in[1].buf, in[2].buf, in[3].buf, in[4].buf, unit};
        PairSums pairs = {0, room, out[0].buf, out[1].buf};
        int enough, right = first >= 0 && stop <= n;
        Py_BEGIN_ALLOW_THREADS
        int64_t *sum = calloc(n, sizeof(int64_t));
        uint64_t *met = calloc(n / 64 + 1, sizeof(uint64_t));
        enough = sum != NULL && met != NULL;
        for (Py_ssize_t row = first; enough && right && row < stop; row++)
            right = ends[row] >= 0 && ends[row + 1] <= total && meet(&all, row, sum, met) &&
                    collect(&all, row, sum, met, &pairs);
        free(sum);
        free(met);
        Py_END_ALLOW_THREADS
        if (!right)
            PyErr_SetString(PyExc_ValueError, "holders of each block, rising, and room for their pairs were expected");
        else
            result = enough ? PyLong_FromSsize_t(pairs.count) : PyErr_NoMemory();
    }
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "no contexts");
    release(in, 5);
    release(out, 2);
    return result;
}

static PyMethodDef methods[] = {
    {"pair_sums", pair_sums, METH_VARARGS, pair_sums_doc},
    {NULL, NULL, 0, NULL},
};

MODULE(_overlaps, "Pairs of contexts that share a block, compiled.", methods)
