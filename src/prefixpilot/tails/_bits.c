/* Which blocks stood together, compiled: `co_occurrence` of policies.py, and how many contexts hold a block. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS ((long long)1 << 50) /* times a count, it fits */

/* Both halves of a window: an int of one bit for each context, by block. */
typedef struct {
    PyObject *newer, *older;
    Py_ssize_t words;
} Halves;

static int count_bits(uint64_t word)
{
#if defined(__GNUC__)
    return __builtin_popcountll(word);
#else
    int bits = 0;
    for (; word; word &= word - 1)
        bits++;
    return bits;
#endif
}

static int64_t count_all(const uint64_t *bits, Py_ssize_t words)
{
    int64_t count = 0;
    for (Py_ssize_t i = 0; i < words; i++)
        count += count_bits(bits[i]);
    return count;
}

static int bytes_of(PyObject *number, unsigned char *bytes, Py_ssize_t size)
{
#if PY_VERSION_HEX >= 0x030D0000
    Py_ssize_t needed = PyLong_AsNativeBytes(number, bytes, size, Py_ASNATIVEBYTES_LITTLE_ENDIAN | Py_ASNATIVEBYTES_UNSIGNED_BUFFER);
    if (needed > size)
        PyErr_SetString(PyExc_OverflowError, "more bits than the window has");
    return needed >= 0 && needed <= size;
#else
    return _PyLong_AsByteArray((PyLongObject *)number, bytes, (size_t)size, 1, 0) == 0;
#endif
}

/* Adds the bits of a block in one half. */
static int add_half(PyObject *half, PyObject *block, uint64_t *bits, Py_ssize_t words)
{
    unsigned char bytes[8];
    PyObject *number = PyDict_GetItemWithError(half, block);
    if (number == NULL)
        return !PyErr_Occurred();
    if (!PyLong_Check(number)) {
        PyErr_SetString(PyExc_TypeError, "ints were expected");
        return 0;
    }
    uint64_t few[16], *more = words <= 16 ? few : malloc((size_t)words * sizeof(uint64_t));
    if (more == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    int right = bytes_of(number, (unsigned char *)more, words * 8);
    for (Py_ssize_t i = 0; right && i < words; i++) {
        memcpy(bytes, &more[i], 8);
        bits[i] |= (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8 | (uint64_t)bytes[2] << 16 | (uint64_t)bytes[3] << 24 |
                   (uint64_t)bytes[4] << 32 | (uint64_t)bytes[5] << 40 | (uint64_t)bytes[6] << 48 | (uint64_t)bytes[7] << 56;
    }
    if (more != few)
        free(more);
    return right;
}

static int holders_of(const Halves *halves, PyObject *block, uint64_t *bits)
{
    memset(bits, 0, (size_t)halves->words * sizeof(uint64_t));
    return add_half(halves->newer, block, bits, halves->words) && add_half(halves->older, block, bits, halves->words);
}

static int halves_of(PyObject *const *args, Halves *halves)
{
    halves->newer = args[0];
    halves->older = args[1];
    Py_ssize_t size = PyLong_AsSsize_t(args[2]);
    if (size == -1 && PyErr_Occurred())
        return 0;
    if (!PyDict_Check(halves->newer) || !PyDict_Check(halves->older) || size < 1 || size > 1 << 24) {
        PyErr_SetString(PyExc_TypeError, "two dicts and the number of their bits were expected");
        return 0;
    }
    halves->words = (size + 63) / 64;
    return 1;
}

static int arguments(Py_ssize_t given, Py_ssize_t expected)
{
    if (given != expected)
        PyErr_Format(PyExc_TypeError, "%zd arguments were expected", expected);
    return given == expected;
}

PyDoc_STRVAR(counts_doc, "counts(newer, older, size, blocks) -> a list: in how many contexts each of a tuple of blocks stood.");

static PyObject *counts(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Halves halves;
    if (!arguments(nargs, 4) || !halves_of(args, &halves))
        return NULL;
    if (!PyTuple_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "a tuple of blocks was expected");
        return NULL;
    }
    uint64_t *bits = malloc((size_t)halves.words * sizeof(uint64_t));
    PyObject *result = bits == NULL ? PyErr_NoMemory() : PyList_New(PyTuple_GET_SIZE(args[3]));
    for (Py_ssize_t i = 0; result != NULL && i < PyTuple_GET_SIZE(args[3]); i++) {
        PyObject *count = NULL;
        if (holders_of(&halves, PyTuple_GET_ITEM(args[3], i), bits))
            count = PyLong_FromLongLong(count_all(bits, halves.words));
        if (count == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, i, count);
    }
    free(bits);
    return result;
}

/* A block that may come next. Its bits: contexts that hold it and all that stands before it. */
typedef struct {
    Py_ssize_t place;
    long long tokens;
    uint64_t *bits;
} Candidate;

typedef struct {
    Py_ssize_t count, words;
    uint64_t *common, *rows;
    Candidate *left;
    double needed;
    int64_t least;
} Candidates;

/* The one worth most, of those for which enough contexts speak; those for which too few do are left out. -1: none. */
static Py_ssize_t worth_most(Candidates *all)
{
    Py_ssize_t best = -1, kept = 0;
    int64_t best_worth = 0;
    for (Py_ssize_t i = 0; i < all->count; i++) {
        Candidate one = all->left[i];
        for (Py_ssize_t word = 0; word < all->words; word++)
            one.bits[word] &= all->common[word];
        int64_t count = count_all(one.bits, all->words);
        if (count < all->least)
            continue;
        if ((double)count >= all->needed && count * one.tokens > best_worth) {
            best_worth = count * one.tokens;
            best = kept;
        }
        all->left[kept++] = one;
    }
    all->count = kept;
    return best;
}

static Py_ssize_t first_that_covers(const Candidates *all, Py_ssize_t best)
{
    const uint64_t *covered = all->left[best].bits;
    Py_ssize_t i = 0, word = 0;
    while (word < all->words)
        if (covered[word] & ~all->left[i].bits[word]) {
            i++;
            word = 0;
        }
        else
            word++;
    return i;
}

static int pick(Candidates *all, PyObject *rest, PyObject *lead, Py_ssize_t most)
{
    while (PyList_GET_SIZE(lead) < most) {
        Py_ssize_t best = worth_most(all);
        if (best < 0)
            break;
        Py_ssize_t next = first_that_covers(all, best);
        if (PyList_Append(lead, PyTuple_GET_ITEM(rest, all->left[next].place)) < 0)
            return 0;
        memcpy(all->common, all->left[next].bits, (size_t)all->words * sizeof(uint64_t));
        memmove(&all->left[next], &all->left[next + 1], (size_t)(--all->count - next) * sizeof(Candidate));
        all->needed = (double)all->least;
    }
    return 1;
}

/* 1; 0 is an error; -1: a length is too large to be multiplied here. */
static int fill(Candidates *all, const Halves *halves, PyObject *prefix, PyObject *rest, PyObject *tokens)
{
    memset(all->common, 0xff, (size_t)all->words * sizeof(uint64_t));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(prefix); i++) {
        if (!holders_of(halves, PyTuple_GET_ITEM(prefix, i), all->rows))
            return 0;
        for (Py_ssize_t word = 0; word < all->words; word++)
            all->common[word] &= all->rows[word];
    }
    for (Py_ssize_t i = 0; i < all->count; i++) {
        int overflow;
        Candidate *one = &all->left[i];
        *one = (Candidate){i, PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(tokens, i), &overflow), all->rows + i * all->words};
        if (one->tokens == -1 && PyErr_Occurred())
            return 0;
        if (overflow || one->tokens < 0 || one->tokens > MOST_TOKENS)
            return -1;
        if (!holders_of(halves, PyTuple_GET_ITEM(rest, i), one->bits))
            return 0;
    }
    return 1;
}

PyDoc_STRVAR(co_occurrence_doc, "co_occurrence(newer, older, size, prefix, rest, tokens, needed, least, most) -> list of blocks of `rest`,\n"
                                "or None where lengths are beyond 2^50.");

static PyObject *co_occurrence(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Halves halves;
    if (!arguments(nargs, 9) || !halves_of(args, &halves))
        return NULL;
    PyObject *prefix = args[3], *rest = args[4], *tokens = args[5];
    double needed = PyFloat_AsDouble(args[6]);
    Py_ssize_t least = PyLong_AsSsize_t(args[7]), most = PyLong_AsSsize_t(args[8]);
    if (PyErr_Occurred())
        return NULL;
    if (!PyTuple_Check(prefix) || !PyTuple_Check(rest) || !PyTuple_Check(tokens) || least < 1 ||
        PyTuple_GET_SIZE(rest) != PyTuple_GET_SIZE(tokens)) {
        PyErr_SetString(PyExc_TypeError, "tuples of blocks, and a length for each of the rest were expected");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(rest);
    Candidates all = {count, halves.words, NULL, NULL, NULL, needed, least};
    all.common = malloc((size_t)(count + 2) * (size_t)halves.words * sizeof(uint64_t));
    all.left = malloc((size_t)(count + 1) * sizeof(Candidate));
    PyObject *lead = all.common == NULL || all.left == NULL ? PyErr_NoMemory() : PyList_New(0);
    if (lead != NULL) {
        all.rows = all.common + halves.words;
        int filled = fill(&all, &halves, prefix, rest, tokens);
        if (filled <= 0 || !pick(&all, rest, lead, most))
            Py_CLEAR(lead);
        if (filled < 0)
            lead = Py_NewRef(Py_None);
    }
    free(all.common);
    free(all.left);
    return lead;
}

static PyMethodDef methods[] = {
    {"counts", (PyCFunction)(void (*)(void))counts, METH_FASTCALL, counts_doc},
    {"co_occurrence", (PyCFunction)(void (*)(void))co_occurrence, METH_FASTCALL, co_occurrence_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_bits",
    .m_doc = "Which blocks stood together, compiled.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__bits(void)
{
    return PyModuleDef_Init(&module);
}
