/* A tree grown by prefixes, laid out for look-ups: finds what `match_prefix` and `locate` of match.py find.
   Blocks are small numbers here, and a node is one line of memory. It mirrors the nodes of tree.py and owns none. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../_buffers.h"
#include "_heaviest.h"
#include "_numbers.h"

/* Adds up lengths, and keeps those from `start` on in `held`. The same block may be of another length in the parent. */
static int fill_lengths(Node *node, PyObject *tokens, int32_t start)
{
    node->total = 0;
    for (int32_t i = 0; i < start + node->own; i++) {
        int overflow;
        long long length = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(tokens, i), &overflow);
        if (length == -1 && PyErr_Occurred())
            return 0;
        if (overflow || length < 0 || length > MOST_TOKENS - node->total) {
            PyErr_SetString(PyExc_OverflowError, "lengths below 2^60 were expected");
            return 0;
        }
        node->total += length;
        if (i >= start)
            node->held[i - start] = length;
    }
    return 1;
}

/* What a node that is not yet in the tree holds. */
static int fill(Prefixes *self, Node *node, PyObject *blocks, PyObject *tokens, int32_t start)
{
    if (!give_own(node, (int32_t)(PyTuple_GET_SIZE(blocks) - start)))
        return 0;
    int32_t done = 0;
    int right = fill_lengths(node, tokens, start);
    while (right && done < node->own)
        if ((right = intern(self, PyTuple_GET_ITEM(blocks, start + done), &own_blocks(node)[done])))
            done++;
    if (!right) {
        release_ids(self, own_blocks(node), done);
        free(node->held);
        return 0;
    }
    node->start = start;
    set_first(node);
    return 1;
}

static Node *node_arg(Prefixes *self, PyObject *number)
{
    long at = PyLong_AsLong(number);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    Node *node = at >= 0 && at < self->count_nodes ? node_at(self, (int32_t)at) : NULL;
    if (node != NULL && node->object != NULL)
        return node;
    PyErr_SetString(PyExc_ValueError, "no such node");
    return NULL;
}

PyDoc_STRVAR(attach_doc, "attach(parent, node, blocks, tokens) -> number of the new child, or -1 if it cannot be mirrored:\n"
                         "a sibling begins alike, or it is longer than numbers are.");

static PyObject *attach(Prefixes *self, PyObject *const *args, Py_ssize_t nargs)
{
    Node *parent = arguments(nargs, 4) ? node_arg(self, args[0]) : NULL;
    if (parent == NULL)
        return NULL;
    PyObject *blocks = args[2], *tokens = args[3];
    int32_t above = (int32_t)PyLong_AsLong(args[0]), start = parent->start + parent->own;
    if (!PyTuple_Check(blocks) || !PyTuple_Check(tokens) || PyTuple_GET_SIZE(blocks) != PyTuple_GET_SIZE(tokens) ||
        PyTuple_GET_SIZE(blocks) < start || PyTuple_GET_SIZE(blocks) > MOST_BLOCKS) {
        PyErr_SetString(PyExc_ValueError, "tuples of one length, beyond the parent's, were expected");
        return NULL;
    }
    int32_t number = new_node(self);
    if (number == NONE)
        return PyErr_NoMemory();
    Node *node = node_at(self, number);
    parent = node_at(self, above);
    if (!fill(self, node, blocks, tokens, start)) {
        drop_node(self, number);
        if (!PyErr_Occurred())
            return PyErr_NoMemory();
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear();
        return PyLong_FromLong(NONE);
    }
    int added = node->own ? add_child(self, parent, own_blocks(node)[0], number) : !parent->ends;
    if (added != 1) {
        release_ids(self, own_blocks(node), node->own);
        free(node->held);
        drop_node(self, number);
        return added < 0 ? PyErr_NoMemory() : PyLong_FromLong(NONE);
    }
    parent->ends |= !node->own;
    node->parent = above;
    node->object = Py_NewRef(args[1]);
    return PyLong_FromLong(number);
}

static PyObject *forget(Prefixes *self, int32_t number)
{
    Node *node = node_at(self, number);
    PyObject *object = node->object;
    release_ids(self, own_blocks(node), node->own);
    free(node->held);
    free(node->children);
    drop_node(self, number);
    Py_DECREF(object);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(detach_doc, "detach(number): a node without children leaves the tree.");

static PyObject *detach(Prefixes *self, PyObject *number)
{
    Node *node = node_arg(self, number);
    if (node == NULL)
        return NULL;
    if (node->count || node->ends || node->parent == NONE) {
        PyErr_SetString(PyExc_ValueError, "the root, or a node with children");
        return NULL;
    }
    if (node->own)
        remove_child(node_at(self, node->parent), own_blocks(node)[0]);
    else
        node_at(self, node->parent)->ends = 0;
    return forget(self, (int32_t)PyLong_AsLong(number));
}

PyDoc_STRVAR(split_doc, "split(number, node, length) -> number of a new node above it that holds the first `length` blocks.");

static PyObject *split(Prefixes *self, PyObject *const *args, Py_ssize_t nargs)
{
    Node *old = arguments(nargs, 3) ? node_arg(self, args[0]) : NULL;
    Py_ssize_t length = old == NULL ? 0 : PyLong_AsSsize_t(args[2]);
    if (old == NULL || (length == -1 && PyErr_Occurred()))
        return NULL;
    if (old->parent == NONE || length <= old->start || length > old->start + old->own) {
        PyErr_SetString(PyExc_ValueError, "a length within its own blocks was expected");
        return NULL;
    }
    int32_t below = (int32_t)PyLong_AsLong(args[0]), number = new_node(self), own = (int32_t)(length - old->start);
    if (number == NONE)
        return PyErr_NoMemory();
    Node rest = *(old = node_at(self, below)), *middle = node_at(self, number);
    if (!give_own(middle, own) || !give_own(&rest, old->own - own) ||
        (rest.own && add_child(self, middle, own_blocks(old)[own], below) < 0)) {
        free(middle->held);
        if (rest.held != old->held)
            free(rest.held);
        drop_node(self, number);
        return PyErr_NoMemory();
    }
    copy_own(middle, 0, old, 0, own);
    copy_own(&rest, 0, old, own, rest.own);
    middle->start = old->start;
    middle->total = old->total - sum_own(&rest, rest.own);
    middle->parent = old->parent;
    middle->ends = !rest.own;
    middle->object = Py_NewRef(args[1]);
    set_first(middle);
    put_child(self, node_at(self, old->parent), own_blocks(old)[0], number);
    free(old->held);
    *old = rest;
    old->start = (int32_t)length;
    old->parent = number;
    set_first(old);
    return PyLong_FromLong(number);
}

PyDoc_STRVAR(join_doc, "join(number, child, tokens): the node leaves, and its only child, of these lengths, stands in its\n"
                       "place.");

static PyObject *join(Prefixes *self, PyObject *const *args, Py_ssize_t nargs)
{
    Node *node = arguments(nargs, 3) ? node_arg(self, args[0]) : NULL, *child = node ? node_arg(self, args[1]) : NULL;
    if (child == NULL)
        return NULL;
    int32_t number = (int32_t)PyLong_AsLong(args[0]), below = (int32_t)PyLong_AsLong(args[1]);
    if (child->parent != number || !node->own || node->count + (int32_t)node->ends != 1) {
        PyErr_SetString(PyExc_ValueError, "an only child was expected");
        return NULL;
    }
    if (!PyTuple_Check(args[2]) || PyTuple_GET_SIZE(args[2]) != child->start + child->own) {
        PyErr_SetString(PyExc_ValueError, "the child's lengths were expected");
        return NULL;
    }
    Node whole = *child;
    if (!give_own(&whole, node->own + child->own))
        return PyErr_NoMemory();
    copy_own(&whole, 0, node, 0, node->own);
    copy_own(&whole, node->own, child, 0, child->own);
    if (!fill_lengths(&whole, args[2], node->start)) {
        free(whole.held);
        return NULL;
    }
    whole.start = node->start;
    whole.parent = node->parent;
    put_child(self, node_at(self, node->parent), own_blocks(node)[0], below);
    free(child->held);
    *child = whole;
    set_first(child);
    node->own = 0; /* its blocks are the child's now, and stay in use */
    return forget(self, number);
}

static PyObject *found(Prefixes *self, int32_t number, int32_t matched)
{
    PyObject *result = PyTuple_New(2), *length = PyLong_FromLong(matched);
    if (result == NULL || length == NULL) {
        Py_XDECREF(result);
        Py_XDECREF(length);
        return NULL;
    }
    PyTuple_SET_ITEM(result, 0, Py_NewRef(node_at(self, number)->object));
    PyTuple_SET_ITEM(result, 1, length);
    return result;
}

PyDoc_STRVAR(match_doc, "match(blocks) -> (node, length): the path of most tokens made of these blocks.");

static PyObject *match(Prefixes *self, PyObject *blocks)
{
    PyObject *all = PySequence_Fast(blocks, "a sequence of blocks was expected");
    if (all == NULL)
        return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(all);
    Wanted wanted;
    PyObject *result = NULL;
    if (count > MOST_BLOCKS || !begin(self, &wanted, (int32_t)count)) {
        Py_DECREF(all);
        return PyErr_NoMemory();
    }
    int right = 1;
    for (Py_ssize_t i = 0; right && i < count; i++) {
        PyObject *known = PyDict_GetItemWithError(self->ids, PySequence_Fast_GET_ITEM(all, i));
        if (known != NULL)
            want(self, &wanted, (int32_t)PyLong_AsLong(known), (int32_t)i);
        else
            right = !PyErr_Occurred();
    }
    Best best = {0, 0, 0};
    if (right && heaviest(self, &wanted, &best))
        result = found(self, best.number, best.matched);
    else if (right)
        PyErr_NoMemory();
    end(&wanted);
    Py_DECREF(all);
    return result;
}

PyDoc_STRVAR(locate_doc, "locate(blocks) -> (node, length): the longest prefix of these blocks, as a sequence.");

static PyObject *locate(Prefixes *self, PyObject *blocks)
{
    if (!PyTuple_Check(blocks)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of blocks was expected");
        return NULL;
    }
    int32_t best = 0, number = 0, matched = 0;
    while (matched < PyTuple_GET_SIZE(blocks)) {
        Node *node = node_at(self, number);
        int32_t behind = matched - node->start;
        PyObject *known = PyDict_GetItemWithError(self->ids, PyTuple_GET_ITEM(blocks, matched));
        if (known == NULL && PyErr_Occurred())
            return NULL;
        if (known == NULL)
            break;
        int32_t id = (int32_t)PyLong_AsLong(known);
        if (behind == node->own) {
            number = child_of(node, id);
            if (number == NONE)
                break;
            best = number;
        }
        else if (own_blocks(node)[behind] != id)
            break;
        matched++;
    }
    return found(self, best, matched);
}

static PyObject *new_prefixes(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *root;
    if (!PyArg_ParseTuple(args, "O", &root))
        return NULL;
    Prefixes *self = (Prefixes *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->free_nodes = self->unused = NONE;
    self->ids = PyDict_New();
    int32_t number = self->ids == NULL ? NONE : new_node(self);
    if (number == NONE) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    node_at(self, number)->object = Py_NewRef(root);
    return (PyObject *)self;
}

static void dealloc(Prefixes *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int32_t i = 0; i < self->count_nodes; i++) {
        Node *node = node_at(self, i);
        if (node->object == NULL)
            continue;
        free(node->held);
        free(node->children);
        Py_DECREF(node->object);
    }
    for (int32_t i = 0; i < self->count_ids; i++)
        Py_XDECREF(self->names[i]);
    Py_XDECREF(self->ids);
    free_room(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"attach", (PyCFunction)(void (*)(void))attach, METH_FASTCALL, attach_doc},
    {"detach", (PyCFunction)detach, METH_O, detach_doc},
    {"split", (PyCFunction)(void (*)(void))split, METH_FASTCALL, split_doc},
    {"join", (PyCFunction)(void (*)(void))join, METH_FASTCALL, join_doc},
    {"match", (PyCFunction)match, METH_O, match_doc},
    {"locate", (PyCFunction)locate, METH_O, locate_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(prefixes_doc, "Prefixes(root): a mirror of a tree that holds its root only. Not thread-safe beyond the lock.");

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)prefixes_doc}, {Py_tp_new, new_prefixes}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, methods}, {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "prefixpilot.index._prefixes.Prefixes",
    .basicsize = sizeof(Prefixes),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = type_slots,
};

MODULE_OF_TYPE(_prefixes, "A tree grown by prefixes, laid out for look-ups.", type_spec)
