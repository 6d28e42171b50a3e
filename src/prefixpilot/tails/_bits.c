/* Which contexts hold a block, compiled: `Halves` of halves.py, and `co_occurrence` and `popularity_tokens` of policies.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_buffers.h"
#include "_halves.h"

#define MOST_TOKENS ((long long)1 << 50) /* times a count, it fits */
#define MOST_SIZE (1 << 24)
#define FEW 64

PyDoc_STRVAR(add_doc, "add(context) -> how many are held now: a sequence of distinct blocks, one or more.");

static PyObject *add(Halves *self, PyObject *context)
{
    PyObject *blocks = PySequence_Tuple(context);
    if (blocks == NULL)
        return NULL;
    if (self->used == self->size) {
        if (!clear_half(&self->half[!self->newer])) {
            Py_DECREF(blocks);
            return NULL;
        }
        self->newer = !self->newer;
        self->used = 0;
        self->before = self->size;
    }
    Half *half = &self->half[self->newer];
    int32_t slot = self->used;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(blocks); i++) {
        PyObject *block = PyTuple_GET_ITEM(blocks, i);
        int32_t at = row_of(half, block);
        if (at == -1)
            at = new_row(half, block, self->words);
        if (at < 0) {
            Py_DECREF(blocks);
            return NULL;
        }
        uint64_t *word = &half->bits[(size_t)at * (size_t)self->words + (size_t)(slot >> 6)], bit = (uint64_t)1 << (slot & 63);
        half->counts[at] += !(*word & bit);
        *word |= bit;
    }
    self->used = slot + 1;
    Py_DECREF(blocks);
    return PyLong_FromLong(self->before + self->used);
}

PyDoc_STRVAR(counts_doc, "counts(blocks) -> a list: in how many contexts each block of a sequence stood.");

static PyObject *counts(Halves *self, PyObject *sequence)
{
    PyObject *blocks = PySequence_Tuple(sequence);
    PyObject *result = blocks == NULL ? NULL : PyList_New(PyTuple_GET_SIZE(blocks));
    for (Py_ssize_t i = 0; result != NULL && i < PyTuple_GET_SIZE(blocks); i++) {
        int64_t count = count_of(self, PyTuple_GET_ITEM(blocks, i));
        PyObject *number = count < 0 ? NULL : PyLong_FromLongLong(count);
        if (number == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, i, number);
    }
    Py_XDECREF(blocks);
    return result;
}

/* An int of the bits of a row, moved up to the slots of its half. */
static PyObject *number_of(const Halves *self, int half, int32_t at)
{
    PyObject *number = PyLong_FromLong(0), *by = PyLong_FromLong(64);
    for (int32_t word = self->words - 1; number != NULL && by != NULL && word >= 0; word--) {
        uint64_t bits = self->half[half].bits[(size_t)at * (size_t)self->words + (size_t)word];
        PyObject *moved = PyNumber_Lshift(number, by), *low = PyLong_FromUnsignedLongLong(bits);
        Py_SETREF(number, moved == NULL || low == NULL ? NULL : PyNumber_Or(moved, low));
        Py_XDECREF(moved);
        Py_XDECREF(low);
    }
    Py_XSETREF(by, PyLong_FromLong(half ? self->size : 0));
    PyObject *result = number == NULL || by == NULL ? NULL : PyNumber_Lshift(number, by);
    Py_XDECREF(number);
    Py_XDECREF(by);
    return result;
}

PyDoc_STRVAR(holders_doc, "holders(block) -> an int, of one bit for each context that holds it.");

static PyObject *holders(Halves *self, PyObject *block)
{
    PyObject *both = PyLong_FromLong(0);
    for (int i = 0; both != NULL && i < 2; i++) {
        int32_t at = row_of(&self->half[i], block);
        if (at == -1)
            continue;
        PyObject *number = at == -2 ? NULL : number_of(self, i, at);
        Py_SETREF(both, number == NULL ? NULL : PyNumber_Or(both, number));
        Py_XDECREF(number);
    }
    return both;
}

static PyObject *content(const Halves *self, int half)
{
    PyObject *result = PyDict_New(), *block, *row;
    for (Py_ssize_t at = 0; result != NULL && PyDict_Next(self->half[half].rows, &at, &block, &row);) {
        PyObject *number = number_of(self, half, (int32_t)PyLong_AsLong(row));
        if (number == NULL || PyDict_SetItem(result, block, number) < 0)
            Py_CLEAR(result);
        Py_XDECREF(number);
    }
    return result;
}

PyDoc_STRVAR(contents_doc, "contents() -> (older, newer): dicts of the holders of each block.");

static PyObject *contents(Halves *self, PyObject *nothing)
{
    PyObject *older = content(self, !self->newer), *newer = older == NULL ? NULL : content(self, self->newer);
    PyObject *both = newer == NULL ? NULL : PyTuple_Pack(2, older, newer);
    Py_XDECREF(older);
    Py_XDECREF(newer);
    return both;
}

/* A length that can be multiplied by a count; -1: it is too large or negative; -2: an error. */
static long long length_of(PyObject *tokens)
{
    int overflow;
    long long length = PyLong_AsLongLongAndOverflow(tokens, &overflow);
    if (length == -1 && PyErr_Occurred())
        return -2;
    return overflow || length < 0 || length > MOST_TOKENS ? -1 : length;
}

static int are_parallel(PyObject *rest, PyObject *tokens)
{
    if (PyTuple_Check(rest) && PyTuple_Check(tokens) && PyTuple_GET_SIZE(rest) == PyTuple_GET_SIZE(tokens))
        return 1;
    PyErr_SetString(PyExc_TypeError, "tuples of blocks, and a length for each of the rest were expected");
    return 0;
}

PyDoc_STRVAR(most_used_doc, "most_used(rest, tokens) -> list of the blocks of `rest`, by contexts x tokens, ties by place; or None where\n"
                            "lengths are beyond 2^50, or blocks more than 64.");

static PyObject *most_used(Halves *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (!arguments(nargs, 2) || !are_parallel(args[0], args[1]))
        return NULL;
    PyObject *order[FEW];
    long long worth[FEW];
    Py_ssize_t count = PyTuple_GET_SIZE(args[0]);
    if (count > FEW)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < count; i++) {
        long long length = length_of(PyTuple_GET_ITEM(args[1], i));
        PyObject *block = PyTuple_GET_ITEM(args[0], i);
        int64_t uses = length < 0 ? 0 : count_of(self, block);
        if (length == -1)
            Py_RETURN_NONE;
        if (length < 0 || uses < 0)
            return NULL;
        Py_ssize_t at = i;
        for (; at > 0 && worth[at - 1] < uses * length; at--) {
            worth[at] = worth[at - 1];
            order[at] = order[at - 1];
        }
        worth[at] = uses * length;
        order[at] = block;
    }
    PyObject *result = PyList_New(count);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++)
        PyList_SET_ITEM(result, i, Py_NewRef(order[i]));
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
        int64_t count = bits_in(one.bits, all->words);
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

/* Those of the rest for which enough contexts can speak. 1; 0 is an error; -1: a length is too large to be multiplied. */
static int fill(Candidates *all, const Halves *self, PyObject *prefix, PyObject *rest, PyObject *tokens)
{
    memset(all->common, 0xff, (size_t)all->words * sizeof(uint64_t));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(prefix); i++) {
        if (!holders_of(self, PyTuple_GET_ITEM(prefix, i), all->rows))
            return 0;
        for (Py_ssize_t word = 0; word < all->words; word++)
            all->common[word] &= all->rows[word];
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); i++) {
        long long length = length_of(PyTuple_GET_ITEM(tokens, i));
        if (length < 0)
            return length == -1 ? -1 : 0;
        int64_t uses = count_of(self, PyTuple_GET_ITEM(rest, i));
        if (uses < 0)
            return 0;
        if (uses < all->least)
            continue;
        Candidate *one = &all->left[all->count];
        *one = (Candidate){i, length, all->rows + all->count * all->words};
        if (!holders_of(self, PyTuple_GET_ITEM(rest, i), one->bits))
            return 0;
        all->count++;
    }
    return 1;
}

PyDoc_STRVAR(co_occurrence_doc, "co_occurrence(prefix, rest, tokens, needed, least, most) -> list of blocks of `rest`, or None where lengths\n"
                                "are beyond 2^50.");

static PyObject *co_occurrence(Halves *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (!arguments(nargs, 6) || !are_parallel(args[1], args[2]))
        return NULL;
    double needed = PyFloat_AsDouble(args[3]);
    Py_ssize_t least = PyLong_AsSsize_t(args[4]), most = PyLong_AsSsize_t(args[5]);
    if (PyErr_Occurred())
        return NULL;
    if (!PyTuple_Check(args[0]) || least < 1) {
        PyErr_SetString(PyExc_TypeError, "a tuple of blocks, and 1 or more were expected");
        return NULL;
    }
    Py_ssize_t room = PyTuple_GET_SIZE(args[1]) + 1, words = 2 * (Py_ssize_t)self->words;
    Candidates all = {0, words, NULL, NULL, NULL, needed, least};
    all.common = malloc((size_t)(room + 1) * (size_t)words * sizeof(uint64_t));
    all.left = malloc((size_t)room * sizeof(Candidate));
    PyObject *lead = all.common == NULL || all.left == NULL ? PyErr_NoMemory() : PyList_New(0);
    if (lead != NULL) {
        all.rows = all.common + words;
        int filled = fill(&all, self, args[0], args[1], args[2]);
        if (filled <= 0 || !pick(&all, args[1], lead, most))
            Py_CLEAR(lead);
        if (filled < 0)
            lead = Py_NewRef(Py_None);
    }
    free(all.common);
    free(all.left);
    return lead;
}

static PyObject *new_halves(PyTypeObject *type, PyObject *args, PyObject *names)
{
    int size;
    if (!PyArg_ParseTuple(args, "i", &size))
        return NULL;
    if (size < 2 || size % 2 || size > MOST_SIZE) {
        PyErr_SetString(PyExc_ValueError, "an even number of contexts from 2 to 2^24 was expected");
        return NULL;
    }
    Halves *self = (Halves *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->size = size / 2;
    self->words = (self->size + 63) / 64;
    if (!clear_half(&self->half[0]) || !clear_half(&self->half[1]))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void dealloc(Halves *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < 2; i++) {
        Py_XDECREF(self->half[i].rows);
        free(self->half[i].bits);
        free(self->half[i].counts);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)add, METH_O, add_doc},
    {"holders", (PyCFunction)holders, METH_O, holders_doc},
    {"counts", (PyCFunction)counts, METH_O, counts_doc},
    {"contents", (PyCFunction)contents, METH_NOARGS, contents_doc},
    {"most_used", (PyCFunction)(void (*)(void))most_used, METH_FASTCALL, most_used_doc},
    {"co_occurrence", (PyCFunction)(void (*)(void))co_occurrence, METH_FASTCALL, co_occurrence_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(halves_doc, "Halves(size): no contexts yet. Not thread-safe beyond the lock.");

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)halves_doc}, {Py_tp_new, new_halves}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, methods}, {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "prefixpilot.tails._bits.Halves",
    .basicsize = sizeof(Halves),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = type_slots,
};

MODULE_OF_TYPE(_bits, "Which contexts hold a block, compiled.", type_spec)
