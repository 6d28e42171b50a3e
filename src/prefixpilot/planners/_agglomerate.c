/* Greedy agglomeration by shared tokens, compiled: the merges of prefixpilot/planners/agglomerate.py, in less time.
 *
 * What is said there holds here. Sums of tokens are whole numbers, exact as floats below 2^24 in one context; a score is
 * computed by the same operations, in floats, in the same order, so the compiler must not fuse or reorder.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_buffers.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "floats are wider than 32 bits in registers here: scores would not be those of NumPy"
#endif

#define NONE (-1)
/* Rows are this much longer than n: columns of a power of two would fall on few lines of a cache. */
#define PADDING 16

typedef struct {
    Py_ssize_t n, width, blocks, living;
    float page, charge, worth; /* charge: -loss; worth: 1 + 2 loss */
    float *tokens;             /* of each block */
    int32_t *holder;           /* of each block the groups that hold it, from start[block] on, in any order */
    int32_t *start, *holders;  /* holders: how many */
    int32_t *held;             /* of each group its blocks, rising, from offset[group] on */
    int32_t *offset, *count;   /* count: how many */
    float *weight;             /* of each group */
    float *shared;             /* zeros, but while a row is computed */
    float *score;              /* (n, width), symmetric; -inf for pairs that share nothing */
    int32_t *group;            /* those that are left, rising */
    float *best;               /* no score of the group with one behind it is larger; -inf for those that are gone */
    int32_t *partner;          /* the first group behind it at score `best`; NONE if it has to be searched for */
} State;

static int make_room(State *s, Py_ssize_t total)
{
    s->tokens = malloc((s->blocks + 1) * sizeof(float));
    s->holder = malloc((total + 1) * sizeof(int32_t));
    s->start = calloc(s->blocks + 1, sizeof(int32_t));
    s->holders = calloc(s->blocks + 1, sizeof(int32_t));
    s->held = malloc((total + 1) * sizeof(int32_t));
    s->offset = malloc(s->n * sizeof(int32_t));
    s->count = malloc(s->n * sizeof(int32_t));
    s->weight = malloc(s->n * sizeof(float));
    s->shared = calloc(s->n, sizeof(float));
    s->score = malloc(s->n * s->width * sizeof(float));
    s->group = malloc(s->n * sizeof(int32_t));
    s->best = malloc(s->n * sizeof(float));
    s->partner = malloc(s->n * sizeof(int32_t));
    return s->tokens && s->holder && s->start && s->holders && s->held && s->offset && s->count && s->weight &&
           s->shared && s->score && s->group && s->best && s->partner;
}

static void free_state(State *s)
{
    void *all[] = {s->tokens, s->holder, s->start, s->holders, s->held, s->offset, s->count,
                   s->weight, s->shared, s->score, s->group, s->best, s->partner};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void weigh(State *s, int32_t group)
{
    double sum = 0;
    for (int32_t p = 0; p < s->count[group]; p++)
        sum += s->tokens[s->held[s->offset[group] + p]];
    s->weight[group] = (float)sum;
}

static void lay_out(State *s, const int64_t *flat, const int64_t *ends, const double *tokens)
{
    int32_t next = 0;
    for (Py_ssize_t b = 0; b < s->blocks; b++)
        s->tokens[b] = (float)tokens[b];
    for (int64_t e = 0; e < ends[s->n]; e++) {
        s->held[e] = (int32_t)flat[e];
        s->holders[flat[e]]++;
    }
    for (Py_ssize_t b = 0; b < s->blocks; b++) {
        s->start[b] = next;
        next += s->holders[b];
        s->holders[b] = 0;
    }
    for (Py_ssize_t g = 0; g < s->n; g++) {
        s->group[g] = (int32_t)g;
        s->offset[g] = (int32_t)ends[g];
        s->count[g] = (int32_t)(ends[g + 1] - ends[g]);
        for (int64_t e = ends[g]; e < ends[g + 1]; e++)
            s->holder[s->start[flat[e]] + s->holders[flat[e]]++] = (int32_t)g;
        weigh(s, (int32_t)g);
    }
    s->living = s->n;
}

/* The scores of a group with those that are left, as its row. */
static void score_row(State *s, int32_t group)
{
    float *row = s->score + group * s->width;
    for (int32_t p = 0; p < s->count[group]; p++) {
        int32_t block = s->held[s->offset[group] + p];
        const int32_t *holder = s->holder + s->start[block];
        for (int32_t h = 0; h < s->holders[block]; h++)
            s->shared[holder[h]] += s->tokens[block];
    }
    for (Py_ssize_t at = 0; at < s->living; at++) {
        int32_t k = s->group[at];
        float shared = s->shared[k];
        s->shared[k] = 0;
        if (s->page > 1)
            shared = floorf(shared / s->page) * s->page;
        row[k] = shared > 0 ? (s->weight[k] + s->weight[group]) * s->charge + s->worth * shared : -INFINITY;
    }
    row[group] = -INFINITY;
}

static void search(State *s, int32_t group)
{
    const float *row = s->score + group * s->width;
    float best = -INFINITY;
    int32_t partner = NONE;
    Py_ssize_t low = 0, high = s->living;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (s->group[middle] <= group)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < s->living; low++)
        if (row[s->group[low]] > best)
            best = row[partner = s->group[low]];
    s->best[group] = best;
    s->partner[group] = partner;
}

/* The group whose best pair is the best of all, with its partner known; NONE if no two share anything worth keeping. */
static int32_t best_group(State *s)
{
    for (;;) {
        int32_t first = s->group[0];
        for (Py_ssize_t at = 1; at < s->living; at++)
            if (s->best[s->group[at]] > s->best[first])
                first = s->group[at];
        if (s->best[first] == -INFINITY)
            return NONE;
        if (s->partner[first] != NONE)
            return first;
        search(s, first);
    }
}

static void forget_holder(State *s, int32_t block, int32_t group)
{
    int32_t *holder = s->holder + s->start[block], place = 0;
    while (holder[place] != group)
        place++;
    holder[place] = holder[--s->holders[block]];
}

/* The blocks of `first` become those that `second` holds too; both leave the lists of what they do not hold any more. */
static void intersect(State *s, int32_t first, int32_t second)
{
    int32_t *own = s->held + s->offset[first], *other = s->held + s->offset[second], kept = 0, q = 0;
    for (int32_t p = 0; p < s->count[first]; p++) {
        while (q < s->count[second] && other[q] < own[p])
            q++;
        if (q < s->count[second] && other[q] == own[p])
            own[kept++] = own[p];
        else
            forget_holder(s, own[p], first);
    }
    for (q = 0; q < s->count[second]; q++)
        forget_holder(s, other[q], second);
    s->count[first] = kept;
    s->count[second] = 0;
}

static void leave(State *s, int32_t group)
{
    Py_ssize_t at = 0;
    while (s->group[at] != group)
        at++;
    s->living--;
    memmove(s->group + at, s->group + at + 1, (s->living - at) * sizeof(int32_t));
    s->best[group] = -INFINITY;
}

static void merge(State *s, int32_t first, int32_t second)
{
    const float *row = s->score + first * s->width;
    intersect(s, first, second);
    weigh(s, first);
    leave(s, second);
    score_row(s, first);
    for (Py_ssize_t at = 0; at < s->living; at++) {
        int32_t k = s->group[at];
        float score = row[k];
        s->score[k * s->width + first] = score;
        if (s->partner[k] == second)
            s->partner[k] = NONE;
        if (k >= first)
            continue;
        if (score > s->best[k] || (score == s->best[k] && score > -INFINITY && s->partner[k] > first)) {
            s->best[k] = score;
            s->partner[k] = first;
        }
        else if (s->partner[k] == first && score < s->best[k])
            s->partner[k] = NONE;
    }
    search(s, first);
}

typedef struct {
    Py_ssize_t count;
    int64_t *first, *second, *common, *ends; /* common[ends[i - 1]] to common[ends[i]]: what merge i keeps */
} Merges;

static void run(State *s, Merges *merges)
{
    int64_t end = 0;
    for (Py_ssize_t g = 0; g < s->n; g++)
        score_row(s, (int32_t)g);
    for (Py_ssize_t g = 0; g < s->n; g++)
        search(s, (int32_t)g);
    for (int32_t first; (first = best_group(s)) != NONE;) {
        int32_t second = s->partner[first];
        merge(s, first, second);
        for (int32_t p = 0; p < s->count[first]; p++)
            merges->common[end++] = s->held[s->offset[first] + p];
        merges->first[merges->count] = first;
        merges->second[merges->count] = second;
        merges->ends[merges->count++] = end;
    }
}

/* -- for Python */

static int are_contexts(const int64_t *flat, const int64_t *ends, Py_ssize_t n, Py_ssize_t total, Py_ssize_t blocks)
{
    int right = ends[0] == 0 && ends[n] == total;
    for (Py_ssize_t g = 0; right && g < n; g++) {
        right = ends[g] <= ends[g + 1] && ends[g + 1] <= total;
        for (int64_t e = ends[g]; right && e < ends[g + 1]; e++)
            right = flat[e] >= 0 && flat[e] < blocks && (e == ends[g] || flat[e - 1] < flat[e]);
    }
    if (!right)
        PyErr_SetString(PyExc_ValueError, "contexts of rising block numbers were expected");
    return right;
}

PyDoc_STRVAR(agglomerate_doc, "agglomerate(flat, ends, tokens, page_size, loss, first, second, common, common_ends)\n"
                              "-> number of merges written");

static PyObject *agglomerate(PyObject *module, PyObject *args)
{
    Py_buffer in[3], out[4];
    double page, loss;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*ddw*w*w*w*", &in[0], &in[1], &in[2], &page, &loss, &out[0], &out[1], &out[2],
                          &out[3]))
        return NULL;
    Py_ssize_t n = in[1].len / 8 - 1, total = in[0].len / 8, blocks = in[2].len / 8;
    if (n < 1 || n > INT32_MAX / 2 || total > INT32_MAX || blocks > INT32_MAX)
        PyErr_SetString(PyExc_ValueError, "no contexts, or too many");
    else if (fits(&in[0], total) && fits(&in[1], n + 1) && fits(&in[2], blocks) && fits(&out[0], n) &&
             fits(&out[1], n) && fits(&out[2], total) && fits(&out[3], n) &&
             are_contexts(in[0].buf, in[1].buf, n, total, blocks)) {
        Merges merges = {0, out[0].buf, out[1].buf, out[2].buf, out[3].buf};
        State state = {.n = n,
                       .width = n + PADDING,
                       .blocks = blocks,
                       .page = (float)page,
                       .charge = (float)-loss,
                       .worth = (float)(1 + 2 * loss)};
        int enough;
        Py_BEGIN_ALLOW_THREADS
        enough = make_room(&state, total);
        if (enough) {
            lay_out(&state, in[0].buf, in[1].buf, in[2].buf);
            run(&state, &merges);
        }
        free_state(&state);
        Py_END_ALLOW_THREADS
        result = enough ? PyLong_FromSsize_t(merges.count) : PyErr_NoMemory();
    }
    release(in, 3);
    release(out, 4);
    return result;
}

static PyMethodDef methods[] = {
    {"agglomerate", agglomerate, METH_VARARGS, agglomerate_doc},
    {NULL, NULL, 0, NULL},
};

MODULE(_agglomerate, "Greedy agglomeration by shared tokens, compiled.", methods)
