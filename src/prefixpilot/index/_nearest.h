/* What both ways of linking keep: the merges that were made, and the nearest neighbour of each cluster behind it.
 * Include after Python.h.
 */
#ifndef PREFIXPILOT_NEAREST_H
#define PREFIXPILOT_NEAREST_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define NONE (-1)

typedef struct {
    Py_ssize_t count;
    int64_t *first, *second;
    double *distance;
} Merges;

/* For each cluster: nothing behind it is nearer than `bound`; `nearest` is the first there, or NONE if it has to be
 * searched for. `bound` is infinite if nothing is behind it, or the cluster is gone. `least` is the smallest bound of
 * each BLOCK clusters. */
#define BLOCK 64
typedef struct {
    Py_ssize_t n;
    double *bound, *least;
    int32_t *nearest;
} Nearest;

static int make_nearest(Nearest *near, Py_ssize_t n)
{
    near->n = n;
    near->bound = malloc(n * sizeof(double));
    near->least = malloc((n / BLOCK + 1) * sizeof(double));
    near->nearest = malloc(n * sizeof(int32_t));
    if (near->bound == NULL || near->least == NULL || near->nearest == NULL)
        return 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        near->bound[i] = near->least[i / BLOCK] = INFINITY;
        near->nearest[i] = NONE;
    }
    return 1;
}

static void free_nearest(Nearest *near)
{
    free(near->bound);
    free(near->least);
    free(near->nearest);
}

/* The first at the smallest value of `count` of them, 1 or more. */
static Py_ssize_t first_smallest(const double *values, Py_ssize_t count)
{
    Py_ssize_t first = 0;
    for (Py_ssize_t i = 1; i < count; i++)
        if (values[i] < values[first])
            first = i;
    return first;
}

static void set_nearest(Nearest *near, int32_t i, double bound, int32_t nearest)
{
    Py_ssize_t block = i / BLOCK, start = block * BLOCK, count = near->n - start < BLOCK ? near->n - start : BLOCK;
    int may_rise = near->bound[i] == near->least[block];
    near->bound[i] = bound;
    near->nearest[i] = nearest;
    if (bound <= near->least[block])
        near->least[block] = bound;
    else if (may_rise)
        near->least[block] = near->bound[start + first_smallest(near->bound + start, count)];
}

/* The first of those at the smallest bound. */
static int32_t closest(const Nearest *near)
{
    Py_ssize_t start = first_smallest(near->least, (near->n - 1) / BLOCK + 1) * BLOCK;
    return (int32_t)(start + first_smallest(near->bound + start, near->n - start < BLOCK ? near->n - start : BLOCK));
}

static void note(Merges *merges, int64_t first, int64_t second, double distance)
{
    merges->first[merges->count] = first;
    merges->second[merges->count] = second;
    merges->distance[merges->count++] = distance;
}

/* Cluster `k`, before `first`, is now at this distance from it. */
static void come_nearer(Nearest *near, int32_t k, int32_t first, double distance)
{
    if (distance < near->bound[k] || (distance == near->bound[k] && near->nearest[k] > first))
        set_nearest(near, k, distance, first);
    else if (near->nearest[k] == first && distance > near->bound[k])
        near->nearest[k] = NONE;
}

#endif
