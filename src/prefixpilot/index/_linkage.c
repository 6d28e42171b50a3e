/* Average linkage, compiled: the merges of prefixpilot/index/linkage.py and sparse_linkage.py, bit for bit, in less time.
 *
 * The specification is `average_linkage_specification`; what is said there and in `Linkage` holds here. Of all pairs at
 * the smallest distance the one with the smallest first, then second cluster merges. Each distance is
 * (one * d + other * e) / (one + other) in doubles, in this order, so the compiler must not fuse or reorder.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_buffers.h"
#include "_matrix.h"
#include "_nearest.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#if FLT_EVAL_METHOD != 0
#error "doubles are wider than 64 bits in registers here: distances would not be those of the specification"
#endif

/* More than this share of the pairs stored: a matrix from here on. As in sparse_linkage.py. */
#define DENSE 0.2
/* Lists of pairs lie all over memory: what is written soon is asked for so many pairs ahead. */
#define AHEAD 8
#ifdef __GNUC__
#define FETCH(place) __builtin_prefetch(place, 1)
#else
#define FETCH(place) ((void)(place))
#endif

/* The pairs of a cluster that are not at distance 1. Each stands in the lists of both its clusters; `twin` is its place
 * in the other's list. `other` is NONE where a pair has gone. */
typedef struct {
    int32_t other, twin;
    double distance;
} Pair;

typedef struct {
    Pair *pair;
    int32_t count, room;
} Pairs;

typedef struct {
    Py_ssize_t n, living;
    int64_t stored;
    double *size;
    Pairs *lists;
    int32_t *at; /* places in the list of the cluster that grows; NONE */
    char *gone;
    Nearest near;
} Sparse;

static int add_pair(Pairs *list, Pair pair)
{
    if (list->count == list->room) {
        int32_t room = list->room + list->room / 2 + 4;
        Pair *moved = realloc(list->pair, room * sizeof(Pair));
        if (moved == NULL)
            return 0;
        list->pair = moved;
        list->room = room;
    }
    list->pair[list->count++] = pair;
    return 1;
}

static void search_list(Sparse *state, int32_t i)
{
    double bound = INFINITY;
    int32_t nearest = NONE;
    for (int32_t p = 0; p < state->lists[i].count; p++) {
        Pair pair = state->lists[i].pair[p];
        if (pair.other > i && (pair.distance < bound || (pair.distance == bound && pair.other < nearest))) {
            bound = pair.distance;
            nearest = pair.other;
        }
    }
    set_nearest(&state->near, i, bound, nearest);
}

static void free_sparse(Sparse *state)
{
    for (Py_ssize_t i = 0; state->lists != NULL && i < state->n; i++)
        free(state->lists[i].pair);
    free(state->lists);
    free(state->at);
    free(state->gone);
    free_nearest(&state->near);
}

static int lay_out(Sparse *state, const int64_t *ends, const int64_t *columns, const double *values)
{
    Py_ssize_t n = state->n;
    state->living = n;
    state->stored = 2 * ends[n];
    state->lists = calloc(n, sizeof(Pairs));
    state->at = malloc(n * sizeof(int32_t));
    state->gone = calloc(n, 1);
    if (!make_nearest(&state->near, n) || state->lists == NULL || state->at == NULL || state->gone == NULL)
        return 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        state->at[i] = NONE;
        state->lists[i].room += (int32_t)(ends[i + 1] - ends[i]);
        for (int64_t e = ends[i]; e < ends[i + 1]; e++)
            state->lists[columns[e]].room++;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        state->lists[i].pair = malloc((state->lists[i].room + 1) * sizeof(Pair));
        if (state->lists[i].pair == NULL)
            return 0;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        for (int64_t e = ends[i]; e < ends[i + 1]; e++) {
            Pairs *own = &state->lists[i], *others = &state->lists[columns[e]];
            own->pair[own->count++] = (Pair){(int32_t)columns[e], others->count, values[e]};
            others->pair[others->count++] = (Pair){(int32_t)i, own->count - 1, values[e]};
        }
    for (Py_ssize_t i = 0; i < n; i++)
        search_list(state, (int32_t)i);
    return 1;
}

static int32_t closest_list(Sparse *state)
{
    for (;;) {
        int32_t first = closest(&state->near);
        if (state->near.nearest[first] != NONE || state->near.bound[first] == INFINITY)
            return first;
        search_list(state, first);
    }
}

/* What of a list is left, without the pair with `but`; `at` says where. */
static void tidy(Sparse *state, Pairs *list, int32_t but)
{
    int32_t left = 0;
    for (int32_t p = 0; p < list->count; p++)
        if (list->pair[p].other != NONE && list->pair[p].other != but) {
            state->at[list->pair[p].other] = left;
            list->pair[left++] = list->pair[p];
        }
    list->count = left;
}

/* The pairs of `second` become pairs of `first`, at their average with those that it has, or with 1. */
static int take_over(Sparse *state, int32_t first, int32_t second, double one, double other)
{
    Pairs *own = &state->lists[first], *more = &state->lists[second];
    double total = one + other;
    for (int32_t p = 0; p < more->count; p++) {
        if (p + AHEAD < more->count && more->pair[p + AHEAD].other != NONE)
            FETCH(&state->lists[more->pair[p + AHEAD].other].pair[more->pair[p + AHEAD].twin]);
        Pair pair = more->pair[p];
        int32_t c = pair.other;
        if (c == NONE || c == first)
            continue;
        if (state->near.nearest[c] == second)
            state->near.nearest[c] = NONE;
        int32_t place = state->at[c];
        if (place != NONE) {
            own->pair[place].distance = (one * own->pair[place].distance + other * pair.distance) / total;
            state->at[c] = NONE;
            state->lists[c].pair[pair.twin].other = NONE;
            state->stored -= 2;
        }
        else if (!add_pair(own, (Pair){c, pair.twin, (one * 1.0 + other * pair.distance) / total}))
            return 0;
    }
    return 1;
}

/* Tell the others of the list of `first`, which has grown; those that `second` had no pair with come nearer to 1. */
static void tell(Sparse *state, int32_t first, double one, double other)
{
    Pairs *own = &state->lists[first];
    for (int32_t p = 0; p < own->count; p++) {
        if (p + AHEAD < own->count)
            FETCH(&state->lists[own->pair[p + AHEAD].other].pair[own->pair[p + AHEAD].twin]);
        Pair *pair = &own->pair[p];
        if (state->at[pair->other] != NONE) {
            pair->distance = (one * pair->distance + other * 1.0) / (one + other);
            state->at[pair->other] = NONE;
        }
        state->lists[pair->other].pair[pair->twin] = (Pair){first, p, pair->distance};
        if (pair->other < first)
            come_nearer(&state->near, pair->other, first, pair->distance);
    }
}

static int unite_lists(Sparse *state, int32_t first, int32_t second)
{
    double one = state->size[first], other = state->size[second];
    tidy(state, &state->lists[first], second);
    if (!take_over(state, first, second, one, other))
        return 0;
    tell(state, first, one, other);
    state->stored -= 2;
    state->living--;
    state->size[first] = one + other;
    state->gone[second] = 1;
    free(state->lists[second].pair);
    state->lists[second] = (Pairs){0};
    set_nearest(&state->near, second, INFINITY, NONE);
    search_list(state, first);
    return 1;
}

/* What is left, in a matrix; with no stored pair all are at distance 1, and the first takes all. */
static int merge_rest(Sparse *state, Merges *merges)
{
    Py_ssize_t living = state->living, row = 0;
    int64_t *names = malloc(living * sizeof(int64_t));
    double *matrix = state->stored ? malloc(living * living * sizeof(double)) : NULL;
    double *size = malloc(living * sizeof(double));
    int enough = names != NULL && size != NULL && (matrix != NULL || !state->stored);
    for (Py_ssize_t i = 0; enough && i < state->n; i++)
        if (!state->gone[i]) {
            size[row] = state->size[i];
            state->at[i] = (int32_t)row;
            names[row++] = i;
        }
    for (Py_ssize_t i = 0; enough && i < living; i++) {
        if (!state->stored) {
            if (i)
                note(merges, names[0], names[i], 1.0);
            continue;
        }
        for (Py_ssize_t j = 0; j < living; j++)
            matrix[i * living + j] = 1.0;
        const Pairs *list = &state->lists[names[i]];
        for (int32_t p = 0; p < list->count; p++)
            if (list->pair[p].other != NONE)
                matrix[i * living + state->at[list->pair[p].other]] = list->pair[p].distance;
    }
    if (enough && state->stored)
        enough = merge_rows(matrix, living, size, names, merges);
    free(names);
    free(matrix);
    free(size);
    return enough;
}

static int merge_stored(Sparse *state, Py_ssize_t few, Merges *merges)
{
    while (state->living > few && state->stored < DENSE * state->living * state->living) {
        int32_t first = closest_list(state), second = state->near.nearest[first];
        double distance = state->near.bound[first];
        if (!(distance < 1.0))
            break;
        note(merges, first, second, distance);
        if (!unite_lists(state, first, second))
            return 0;
    }
    return merge_rest(state, merges);
}

/* -- for Python */

static int is_count(Py_ssize_t n)
{
    if (n >= 1 && n <= INT32_MAX)
        return 1;
    PyErr_SetString(PyExc_ValueError, "no clusters, or too many");
    return 0;
}

static int take_merges(const Py_buffer *out, Py_ssize_t n)
{
    return fits(&out[0], n - 1) && fits(&out[1], n - 1) && fits(&out[2], n - 1);
}

PyDoc_STRVAR(link_matrix_doc, "link_matrix(matrix, sizes, first, second, distance) -> number of merges written");

static PyObject *link_matrix(PyObject *module, PyObject *args)
{
    Py_buffer in[2], out[3];
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "w*w*w*w*w*", &in[0], &in[1], &out[0], &out[1], &out[2]))
        return NULL;
    Py_ssize_t n = in[1].len / 8;
    if (is_count(n) && fits(&in[0], n * n) && fits(&in[1], n) && take_merges(out, n)) {
        Merges merges = {0, out[0].buf, out[1].buf, out[2].buf};
        int enough;
        Py_BEGIN_ALLOW_THREADS
        int64_t *names = malloc(n * sizeof(int64_t));
        for (Py_ssize_t i = 0; names != NULL && i < n; i++)
            names[i] = i;
        enough = names != NULL && merge_rows(in[0].buf, n, in[1].buf, names, &merges);
        free(names);
        Py_END_ALLOW_THREADS
        result = enough ? PyLong_FromSsize_t(merges.count) : PyErr_NoMemory();
    }
    release(in, 2);
    release(out, 3);
    return result;
}

static int are_pairs(Py_ssize_t n, const int64_t *ends, const int64_t *columns, Py_ssize_t count)
{
    int right = ends[0] == 0 && ends[n] == count;
    for (Py_ssize_t i = 0; right && i < n; i++) {
        right = ends[i] <= ends[i + 1] && ends[i + 1] <= count;
        for (int64_t e = ends[i]; right && e < ends[i + 1]; e++)
            right = columns[e] > (e > ends[i] ? columns[e - 1] : i) && columns[e] < n;
    }
    if (!right)
        PyErr_SetString(PyExc_ValueError, "pairs of a cluster and those behind it, rising, were expected");
    return right;
}

PyDoc_STRVAR(link_pairs_doc,
             "link_pairs(ends, columns, values, sizes, few, first, second, distance) -> number of merges written");

static PyObject *link_pairs(PyObject *module, PyObject *args)
{
    Py_buffer in[4], out[3];
    Py_ssize_t few;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*w*nw*w*w*", &in[0], &in[1], &in[2], &in[3], &few, &out[0], &out[1], &out[2]))
        return NULL;
    Py_ssize_t n = in[3].len / 8, count = in[1].len / 8;
    if (is_count(n) && fits(&in[0], n + 1) && fits(&in[1], count) && fits(&in[2], count) && fits(&in[3], n) &&
        take_merges(out, n) && are_pairs(n, in[0].buf, in[1].buf, count)) {
        Merges merges = {0, out[0].buf, out[1].buf, out[2].buf};
        Sparse state = {.n = n, .size = in[3].buf};
        int enough;
        Py_BEGIN_ALLOW_THREADS
        enough = lay_out(&state, in[0].buf, in[1].buf, in[2].buf) && merge_stored(&state, few, &merges);
        free_sparse(&state);
        Py_END_ALLOW_THREADS
        result = enough ? PyLong_FromSsize_t(merges.count) : PyErr_NoMemory();
    }
    release(in, 4);
    release(out, 3);
    return result;
}

static PyMethodDef methods[] = {
    {"link_matrix", link_matrix, METH_VARARGS, link_matrix_doc},
    {"link_pairs", link_pairs, METH_VARARGS, link_pairs_doc},
    {NULL, NULL, 0, NULL},
};

MODULE(_linkage, "Average linkage, compiled.", methods)
