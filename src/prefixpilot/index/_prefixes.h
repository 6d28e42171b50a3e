/* Nodes, what they hold, and their children. No Python objects are looked at here. */
#ifndef PREFIXPILOT_PREFIXES_H
#define PREFIXPILOT_PREFIXES_H

#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define MOST_TOKENS ((int64_t)1 << 60)
#define MOST_BLOCKS (1 << 24)
#define DENSE 16 /* so many children or fewer are an array in order of arrival; more are a hash table, half full */
#define CHUNK_BITS 9
#define CHUNK (1 << CHUNK_BITS)

typedef struct {
    int32_t block, number;
    uint32_t arrival;
} Child;

/* 64 bytes, in the order in which a walk looks at them. */
typedef struct {
    int64_t total, first_total; /* with all own blocks; with the first of them only */
    int32_t own, second;        /* number of own blocks; the second of them */
    int32_t start, count;       /* blocks of the parents; children with own blocks */
    uint32_t room : 31;         /* for so many of them */
    uint32_t ends : 1;          /* one child has no own blocks */
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
    uint32_t look_up, arrivals;
} Prefixes;

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

static inline uint32_t place_of(int32_t block, uint32_t room)
{
    return ((uint32_t)block * 2654435769u >> 7) & (room - 1);
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
    for (; node->children[at].block != NONE; at = (at + 1) & (node->room - 1))
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
            at = (at + 1) & (node->room - 1);
    node->children[at] = child;
    node->count++;
}

static int widen(Node *node)
{
    Node wide = *node;
    uint32_t held = node->room <= DENSE ? (uint32_t)node->count : node->room;
    wide.room = node->room < 2 ? 2 : node->room == DENSE ? 4 * DENSE : 2 * node->room;
    wide.count = 0;
    wide.children = malloc((size_t)wide.room * sizeof(Child));
    if (wide.children == NULL)
        return 0;
    memset(wide.children, 0xff, (size_t)wide.room * sizeof(Child));
    for (uint32_t i = 0; i < held; i++)
        if (node->children[i].block != NONE)
            put_new(&wide, node->children[i]);
    free(node->children);
    *node = wide;
    return 1;
}

/* 1; 0 if one begins with this block already; -1 without memory. */
static int add_child(Prefixes *self, Node *node, int32_t block, int32_t number)
{
    if (find(node, block) != NULL)
        return 0;
    if ((uint32_t)node->count * (node->room <= DENSE ? 1 : 2) >= node->room && !widen(node))
        return -1;
    put_new(node, (Child){block, number, self->arrivals++});
    return 1;
}

static void remove_child(Node *node, int32_t block)
{
    Child *gone = find(node, block), *all = node->children;
    node->count--;
    if (node->room <= DENSE) {
        memmove(gone, gone + 1, (size_t)(all + node->count - gone) * sizeof(Child));
        return;
    }
    uint32_t last = node->room - 1, hole = (uint32_t)(gone - all), at = hole;
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

/* Another node in the place of the child that begins with this block; it comes last, as in the dict of node.py. */
static void put_child(Prefixes *self, Node *node, int32_t block, int32_t number)
{
    remove_child(node, block);
    put_new(node, (Child){block, number, self->arrivals++});
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

static void free_room(Prefixes *self)
{
    for (int32_t i = 0; i < self->count_chunks; i++)
        free(self->chunks[i]);
    free(self->chunks);
    free(self->names);
    free(self->marks);
    free(self->uses);
}

#endif
