/* The heaviest path of a tree that is made of wanted blocks. No Python objects are looked at here. */
#ifndef PREFIXPILOT_HEAVIEST_H
#define PREFIXPILOT_HEAVIEST_H

#include "_prefixes.h"

#define SIEVE_BITS 1024

#if defined(__GNUC__)
#define FETCH(place) __builtin_prefetch(place)
#else
#define FETCH(place) ((void)0)
#endif

typedef struct {
    int32_t number;
    uint32_t turn;
} Pending;

typedef struct {
    int32_t *ids, count, width; /* those that a node has; with all others */
    uint64_t sieve[SIEVE_BITS / 64];
    Pending *stack, few[64];
    int32_t few_ids[64];
    Py_ssize_t depth, room;
} Wanted;

typedef struct {
    int64_t tokens;
    int32_t number, matched;
} Best;

static int begin(Prefixes *self, Wanted *wanted, int32_t count)
{
    wanted->count = 0;
    wanted->width = count;
    wanted->depth = 0;
    wanted->room = 64;
    wanted->stack = wanted->few;
    wanted->ids = count <= 64 ? wanted->few_ids : malloc((size_t)count * sizeof(int32_t));
    memset(wanted->sieve, 0, sizeof wanted->sieve);
    if (++self->look_up == 0) {
        for (int32_t i = 0; i < self->count_ids; i++)
            if (self->names[i] != NULL)
                self->marks[i] = 0;
        self->look_up = 1;
    }
    return wanted->ids != NULL;
}

static void end(Wanted *wanted)
{
    if (wanted->ids != wanted->few_ids)
        free(wanted->ids);
    if (wanted->stack != wanted->few)
        free(wanted->stack);
}

static inline int is_wanted(const Prefixes *self, const Wanted *wanted, int32_t id)
{
    return (wanted->sieve[(id & (SIEVE_BITS - 1)) >> 6] >> (id & 63) & 1) && self->marks[id] >> 32 == self->look_up;
}

static void want(Prefixes *self, Wanted *wanted, int32_t id, int32_t rank)
{
    if (is_wanted(self, wanted, id))
        return;
    wanted->sieve[(id & (SIEVE_BITS - 1)) >> 6] |= (uint64_t)1 << (id & 63);
    self->marks[id] = (uint64_t)self->look_up << 32 | (uint32_t)rank;
    wanted->ids[wanted->count++] = id;
}

/* Pending nodes of one parent lie with the first to be looked at last. */
static int push(const Prefixes *self, Wanted *wanted, Py_ssize_t below, int32_t number, uint32_t turn)
{
    if (wanted->depth == wanted->room) {
        Pending *stack = malloc((size_t)wanted->room * 2 * sizeof(Pending));
        if (stack == NULL)
            return 0;
        memcpy(stack, wanted->stack, (size_t)wanted->depth * sizeof(Pending));
        if (wanted->stack != wanted->few)
            free(wanted->stack);
        wanted->stack = stack;
        wanted->room *= 2;
    }
    FETCH(node_at(self, number));
    Py_ssize_t at = wanted->depth++;
    for (; at > below && (int32_t)(wanted->stack[at - 1].turn - turn) < 0; at--)
        wanted->stack[at] = wanted->stack[at - 1];
    wanted->stack[at] = (Pending){number, turn};
    return 1;
}

/* The children that begin with a wanted block: by relevance below the root and where there are many, else by arrival. */
static int push_children(const Prefixes *self, Wanted *wanted, const Node *node)
{
    Py_ssize_t below = wanted->depth;
    int by_rank = node->parent == NONE || node->count + (int32_t)node->ends > wanted->width;
    const Child *child = node->children;
    if (node->room > DENSE && node->room > 2 * (uint32_t)wanted->count) {
        for (int32_t i = wanted->count - 1; i >= 0; i--)
            if ((child = find(node, wanted->ids[i])) != NULL)
                if (!push(self, wanted, below, child->number, by_rank ? (uint32_t)self->marks[child->block] : child->arrival))
                    return 0;
        return 1;
    }
    const Child *stop = child + (node->room > DENSE ? node->room : (uint32_t)node->count);
    for (; child < stop; child++)
        if (child->block != NONE && is_wanted(self, wanted, child->block))
            if (!push(self, wanted, below, child->number, by_rank ? (uint32_t)self->marks[child->block] : child->arrival))
                return 0;
    return 1;
}

static int32_t matched_own(const Prefixes *self, const Wanted *wanted, const Node *node)
{
    int32_t matched = 1;
    if (node->own == 1 || !is_wanted(self, wanted, node->second))
        return matched;
    const int32_t *blocks = own_blocks(node);
    while (++matched < node->own && is_wanted(self, wanted, blocks[matched]))
        ;
    return matched;
}

/* As `match_prefix`: depth first, the more relevant block first; only a heavier path takes the place of one found. */
static int heaviest(const Prefixes *self, Wanted *wanted, Best *best)
{
    if (!push_children(self, wanted, node_at(self, 0)))
        return 0;
    while (wanted->depth) {
        int32_t number = wanted->stack[--wanted->depth].number, matched;
        const Node *node = node_at(self, number);
        matched = matched_own(self, wanted, node);
        int64_t tokens = node->total;
        if (matched == 1)
            tokens = node->first_total;
        else if (matched < node->own)
            tokens = node->first_total - node->held[0] + sum_own(node, matched);
        if (tokens > best->tokens)
            *best = (Best){tokens, number, node->start + matched};
        if (matched == node->own && node->count && !push_children(self, wanted, node))
            return 0;
    }
    return 1;
}

#endif
