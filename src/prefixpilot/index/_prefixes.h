/* Nodes, their children, and the walk over them. No Python objects are looked at here. */
#ifndef PREFIXPILOT_PREFIXES_H
#define PREFIXPILOT_PREFIXES_H

#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define MOST_TOKENS ((int64_t)1 << 60)
#define MOST_BLOCKS (1 << 24)
#define DENSE 16 /* so many children or fewer are an array; more are a hash table, at most half full */
#define CHUNK_BITS 9
#define CHUNK (1 << CHUNK_BITS)
#define SIEVE_BITS 1024

#if defined(__GNUC__)
#define FETCH(place) __builtin_prefetch(place)
#else
#define FETCH(place) ((void)0)
#endif

typedef struct {
    int32_t block, number;
} Child;

/* 64 bytes, in the order in which a walk looks at them. */
typedef struct {
    int64_t total, first_total; /* with all own blocks; with the first of them only */
    int32_t own, second;        /* number of own blocks; the second of them */
    int32_t start, count, room; /* blocks of the parents; children with own blocks; places for them */
    int32_t parent;             /* of a free node: the next free one */
    Child *children;
    int64_t *held; /* lengths of the own blocks, and behind them the blocks */
    PyObject *object;
} Node;

typedef struct {
    PyObject_HEAD
    PyObject *ids;           /* number of each block that a node has as its own */
    PyObject **names;        /* by number */
    uint64_t *marks;         /* look-up << 32 | rank; of a free number: the next free one */
    int32_t *uses;           /* nodes */
    int32_t count_ids, room_ids, unused;
    Node **chunks;
    int32_t count_chunks, count_nodes, free_nodes;
    uint32_t look_up;
} Prefixes;

typedef struct {
    int32_t number, rank;
} Pending;

typedef struct {
    int32_t *ids, count;
    uint64_t sieve[SIEVE_BITS / 64];
    Pending *stack, few[64];
    int32_t few_ids[64];
    Py_ssize_t depth, room;
} Wanted;

typedef struct {
    int64_t tokens;
    int32_t number, matched;
} Best;

static inline Node *node_at(const Prefixes *self, int32_t number)
{
    return &self->chunks[number >> CHUNK_BITS][number & (CHUNK - 1)];
}

/* -- own blocks */

static inline int32_t *own_blocks(const Node *node)
{
    return (int32_t *)(node->held + node->own);
}

/* Room for `own` blocks. What the node held before stays with whoever knows it. */
static int give_own(Node *node, int32_t own)
{
    node->held = malloc((size_t)own * (sizeof(int64_t) + sizeof(int32_t)) + 1);
    node->own = own;
    return node->held != NULL;
}

static void copy_own(Node *to, int32_t at, const Node *from, int32_t first, int32_t count)
{
    memcpy(to->held + at, from->held + first, (size_t)count * sizeof(int64_t));
    memcpy(own_blocks(to) + at, own_blocks(from) + first, (size_t)count * sizeof(int32_t));
}

static int64_t sum_own(const Node *node, int32_t count)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < count; i++)
        sum += node->held[i];
    return sum;
}

static void set_first(Node *node)
{
    node->first_total = node->total - sum_own(node, node->own) + (node->own ? node->held[0] : 0);
    node->second = node->own > 1 ? own_blocks(node)[1] : NONE;
}

/* -- children */

static inline uint32_t place_of(int32_t block, int32_t room)
{
    return ((uint32_t)block * 2654435769u >> 7) & (uint32_t)(room - 1);
}

static Child *find(const Node *node, int32_t block)
{
    if (node->room <= DENSE) {
        for (int32_t i = 0; i < node->count; i++)
            if (node->children[i].block == block)
                return &node->children[i];
        return NULL;
    }
    uint32_t at = place_of(block, node->room);
    for (; node->children[at].block != NONE; at = (at + 1) & (uint32_t)(node->room - 1))
        if (node->children[at].block == block)
            return &node->children[at];
    return NULL;
}

static int32_t child_of(const Node *node, int32_t block)
{
    const Child *child = find(node, block);
    return child == NULL ? NONE : child->number;
}

static void put_new(Node *node, Child child)
{
    uint32_t at = (uint32_t)node->count;
    if (node->room > DENSE)
        for (at = place_of(child.block, node->room); node->children[at].block != NONE;)
            at = (at + 1) & (uint32_t)(node->room - 1);
    node->children[at] = child;
    node->count++;
}

static int widen(Node *node)
{
    Node wide = *node;
    wide.room = node->room < 2 ? 2 : node->room == DENSE ? 4 * DENSE : 2 * node->room;
    wide.count = 0;
    wide.children = malloc((size_t)wide.room * sizeof(Child));
    if (wide.children == NULL)
        return 0;
    memset(wide.children, 0xff, (size_t)wide.room * sizeof(Child));
    for (int32_t i = 0; i < (node->room <= DENSE ? node->count : node->room); i++)
        if (node->children[i].block != NONE)
            put_new(&wide, node->children[i]);
    free(node->children);
    *node = wide;
    return 1;
}

/* 1; 0 if one begins with this block already; -1 without memory. */
static int add_child(Node *node, int32_t block, int32_t number)
{
    if (find(node, block) != NULL)
        return 0;
    if (node->room <= DENSE ? node->count == node->room : 2 * node->count >= node->room)
        if (!widen(node))
            return -1;
    put_new(node, (Child){block, number});
    return 1;
}

static void put_child(Node *node, int32_t block, int32_t number)
{
    find(node, block)->number = number;
}

static void remove_child(Node *node, int32_t block)
{
    Child *gone = find(node, block), *all = node->children;
    node->count--;
    if (node->room <= DENSE) {
        *gone = all[node->count];
        return;
    }
    uint32_t last = (uint32_t)(node->room - 1), hole = (uint32_t)(gone - all), at = hole;
    for (;;) {
        at = (at + 1) & last;
        if (all[at].block == NONE)
            break;
        if (((at - place_of(all[at].block, node->room)) & last) >= ((at - hole) & last)) {
            all[hole] = all[at];
            hole = at;
        }
    }
    all[hole].block = NONE;
}

/* -- room */

static int32_t new_node(Prefixes *self)
{
    int32_t number = self->free_nodes;
    if (number != NONE)
        self->free_nodes = node_at(self, number)->parent;
    else {
        if (self->count_nodes == self->count_chunks * CHUNK) {
            if (self->count_nodes > INT32_MAX - CHUNK)
                return NONE;
            Node **chunks = realloc(self->chunks, ((size_t)self->count_chunks + 1) * sizeof(Node *));
            if (chunks == NULL)
                return NONE;
            self->chunks = chunks;
            if ((chunks[self->count_chunks] = malloc(CHUNK * sizeof(Node))) == NULL)
                return NONE;
            self->count_chunks++;
        }
        number = self->count_nodes++;
    }
    memset(node_at(self, number), 0, sizeof(Node));
    node_at(self, number)->parent = NONE;
    return number;
}

static void drop_node(Prefixes *self, int32_t number)
{
    node_at(self, number)->object = NULL;
    node_at(self, number)->parent = self->free_nodes;
    self->free_nodes = number;
}

static int room_for_id(Prefixes *self)
{
    if (self->unused != NONE || self->count_ids < self->room_ids)
        return 1;
    int32_t room = self->room_ids < 64 ? 64 : self->room_ids * 2;
    if (self->room_ids > INT32_MAX / 2)
        return 0;
    PyObject **names = realloc(self->names, (size_t)room * sizeof(PyObject *));
    self->names = names == NULL ? self->names : names;
    uint64_t *marks = names == NULL ? NULL : realloc(self->marks, (size_t)room * sizeof(uint64_t));
    self->marks = marks == NULL ? self->marks : marks;
    int32_t *uses = marks == NULL ? NULL : realloc(self->uses, (size_t)room * sizeof(int32_t));
    if (uses == NULL)
        return 0;
    self->uses = uses;
    self->room_ids = room;
    return 1;
}

static void free_room(Prefixes *self)
{
    for (int32_t i = 0; i < self->count_chunks; i++)
        free(self->chunks[i]);
    free(self->chunks);
    free(self->names);
    free(self->marks);
    free(self->uses);
}

/* -- a look-up */

static int begin(Prefixes *self, Wanted *wanted, int32_t count)
{
    wanted->count = 0;
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

/* The first of equal rank stays on top: pending nodes of one parent lie with the most relevant last. */
static int push(const Prefixes *self, Wanted *wanted, Py_ssize_t below, Child child)
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
    FETCH(node_at(self, child.number));
    int32_t rank = (int32_t)(uint32_t)self->marks[child.block];
    Py_ssize_t at = wanted->depth++;
    for (; at > below && wanted->stack[at - 1].rank < rank; at--)
        wanted->stack[at] = wanted->stack[at - 1];
    wanted->stack[at] = (Pending){child.number, rank};
    return 1;
}

/* The children that begin with a wanted block. */
static int push_children(const Prefixes *self, Wanted *wanted, const Node *node)
{
    Py_ssize_t below = wanted->depth;
    const Child *child = node->children;
    if (node->room > DENSE && node->room > 2 * wanted->count) {
        for (int32_t i = wanted->count - 1; i >= 0; i--)
            if ((child = find(node, wanted->ids[i])) != NULL && !push(self, wanted, below, *child))
                return 0;
        return 1;
    }
    const Child *stop = child + (node->room > DENSE ? node->room : node->count);
    for (; child < stop; child++)
        if (child->block != NONE && is_wanted(self, wanted, child->block) && !push(self, wanted, below, *child))
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
