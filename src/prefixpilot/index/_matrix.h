/* Average linkage in a matrix of all distances. */
#ifndef PREFIXPILOT_MATRIX_H
#define PREFIXPILOT_MATRIX_H

#include "_nearest.h"

static void search_row(const double *row, int32_t i, const int32_t *living, Py_ssize_t count, Nearest *near)
{
    Py_ssize_t low = 0, high = count;
    double bound = INFINITY;
    int32_t nearest = NONE;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (living[middle] <= i)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < count; low++)
        if (row[living[low]] < bound)
            bound = row[nearest = living[low]];
    set_nearest(near, i, bound, nearest);
}

static int32_t closest_row(const double *matrix, Py_ssize_t n, const int32_t *living, Py_ssize_t count, Nearest *near)
{
    for (;;) {
        int32_t first = closest(near);
        if (near->nearest[first] != NONE || near->bound[first] == INFINITY)
            return first;
        search_row(matrix + first * n, first, living, count, near);
    }
}

static void unite_rows(double *matrix, Py_ssize_t n, double *size, int32_t first, int32_t second, const int32_t *living,
                       Py_ssize_t count, Nearest *near)
{
    double *row = matrix + first * n, *more = matrix + second * n;
    double one = size[first], other = size[second], total = one + other, bound = INFINITY;
    int32_t nearest = NONE;
    for (Py_ssize_t at = 0; at < count; at++) {
        int32_t k = living[at];
        if (k == first)
            continue;
        double distance = (one * row[k] + other * more[k]) / total;
        row[k] = matrix[k * n + first] = distance;
        if (near->nearest[k] == second)
            near->nearest[k] = NONE;
        if (k < first)
            come_nearer(near, k, first, distance);
        else if (distance < bound) {
            bound = distance;
            nearest = k;
        }
    }
    size[first] = total;
    set_nearest(near, first, bound, nearest);
    set_nearest(near, second, INFINITY, NONE);
}

/* `names`: of the rows. Returns whether there was memory. */
static int merge_rows(double *matrix, Py_ssize_t n, double *size, const int64_t *names, Merges *merges)
{
    Nearest near = {0};
    int32_t *living = malloc(n * sizeof(int32_t));
    int enough = make_nearest(&near, n) && living != NULL;
    Py_ssize_t count = n;
    for (Py_ssize_t i = 0; enough && i < n; i++)
        living[i] = (int32_t)i;
    for (Py_ssize_t i = 0; enough && i < n; i++)
        search_row(matrix + i * n, (int32_t)i, living, count, &near);
    while (enough && count > 1) {
        int32_t first = closest_row(matrix, n, living, count, &near), second = near.nearest[first];
        if (second == NONE)
            break; /* all that is left is infinitely far */
        note(merges, names[first], names[second], near.bound[first]);
        Py_ssize_t left = 0;
        for (Py_ssize_t at = 0; at < count; at++)
            if (living[at] != second)
                living[left++] = living[at];
        count = left;
        unite_rows(matrix, n, size, first, second, living, count, &near);
    }
    free_nearest(&near);
    free(living);
    return enough;
}

#endif
