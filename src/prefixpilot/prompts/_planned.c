/* Blocks of plans, compiled: what `assemble_in_full`, `texts_of` and `full_columns` of assemble.py return. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <structmember.h>

#include "../_buffers.h"

enum { ID, BLOCK, POSITION, LABEL, ANNOTATION, TOKENS, FIELDS };
enum { STORED_ID, STORED_BLOCK, STORED_TOKENS, STORED_KEY, STORED_FIELDS };

/* The record at `at` of a sequence, borrowed. */
static PyObject *record(PyObject *all, Py_ssize_t at, Py_ssize_t fields)
{
    PyObject *item = at >= 0 && at < PySequence_Fast_GET_SIZE(all) ? PySequence_Fast_GET_ITEM(all, at) : NULL;
    if (item != NULL && PyTuple_Check(item) && PyTuple_GET_SIZE(item) == fields)
        return item;
    PyErr_SetString(PyExc_ValueError, "no such record");
    return NULL;
}

static PyObject *planned_block(PyTypeObject *type, PyObject *stored, PyObject *position, PyObject *label)
{
    PyObject *block = type->tp_alloc(type, FIELDS);
    if (block == NULL)
        return NULL;
    PyTuple_SET_ITEM(block, ID, Py_NewRef(PyTuple_GET_ITEM(stored, STORED_ID)));
    PyTuple_SET_ITEM(block, BLOCK, Py_NewRef(PyTuple_GET_ITEM(stored, STORED_BLOCK)));
    PyTuple_SET_ITEM(block, POSITION, Py_NewRef(position));
    PyTuple_SET_ITEM(block, LABEL, Py_NewRef(label));
    PyTuple_SET_ITEM(block, ANNOTATION, Py_NewRef(Py_None));
    PyTuple_SET_ITEM(block, TOKENS, Py_NewRef(PyTuple_GET_ITEM(stored, STORED_TOKENS)));
    return block;
}

PyDoc_STRVAR(planned_doc, "planned(type, stored, order, labels) -> a tuple of `type`, a named tuple of six fields.");

static PyObject *planned(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!arguments(nargs, 4))
        return NULL;
    if (!PyType_Check(args[0]) || !PyType_IsSubtype((PyTypeObject *)args[0], &PyTuple_Type) || !PyTuple_Check(args[2]) ||
        !PyTuple_Check(args[3]) || PyTuple_GET_SIZE(args[3]) < PyTuple_GET_SIZE(args[2])) {
        PyErr_SetString(PyExc_TypeError, "a type of tuples, and as many labels as positions were expected");
        return NULL;
    }
    PyObject *all = PySequence_Fast(args[1], "a sequence of records was expected");
    PyObject *result = all == NULL ? NULL : PyTuple_New(PyTuple_GET_SIZE(args[2]));
    for (Py_ssize_t i = 0; result != NULL && i < PyTuple_GET_SIZE(args[2]); i++) {
        PyObject *position = PyTuple_GET_ITEM(args[2], i), *block = NULL;
        Py_ssize_t at = PyLong_AsSsize_t(position);
        PyObject *stored = at == -1 && PyErr_Occurred() ? NULL : record(all, at, STORED_FIELDS);
        if (stored != NULL)
            block = planned_block((PyTypeObject *)args[0], stored, position, PyTuple_GET_ITEM(args[3], i));
        if (block == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, block);
    }
    Py_XDECREF(all);
    return result;
}

/* Where objects of a type keep an attribute, as those of classes with slots do; 0: they must be asked for it. */
static Py_ssize_t slot_of(PyTypeObject *type, PyObject *name)
{
    PyObject *found = PyDict_GetItemWithError(type->tp_dict, name);
    if (found == NULL || !Py_IS_TYPE(found, &PyMemberDescr_Type) || type->tp_getattro != PyObject_GenericGetAttr) {
        PyErr_Clear();
        return 0;
    }
    const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
    return member->type == T_OBJECT_EX && !(member->flags & READONLY) ? member->offset : 0;
}

static PyObject **at_slot(PyObject *object, Py_ssize_t slot)
{
    return (PyObject **)((char *)object + slot);
}

/* Adds an attribute of a block to a list, if it is not empty. */
static int add_text(PyObject *texts, PyObject *block, PyObject *name, Py_ssize_t slot)
{
    PyObject *text = slot ? Py_XNewRef(*at_slot(block, slot)) : NULL;
    if (text == NULL)
        text = PyObject_GetAttr(block, name);
    int right = text != NULL;
    if (right && text != Py_None) {
        int said = PyObject_IsTrue(text);
        right = said < 0 ? 0 : !said || PyList_Append(texts, text) == 0;
    }
    Py_XDECREF(text);
    return right;
}

PyDoc_STRVAR(texts_doc, "texts(stored, 'text', 'title') -> a list of the texts and titles that are not empty, block by block.");

static PyObject *texts(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!arguments(nargs, 3))
        return NULL;
    PyObject *all = PySequence_Fast(args[0], "a sequence of records was expected");
    PyObject *result = all == NULL ? NULL : PyList_New(0);
    PyTypeObject *type = NULL;
    Py_ssize_t text = 0, title = 0;
    for (Py_ssize_t i = 0; result != NULL && i < PySequence_Fast_GET_SIZE(all); i++) {
        PyObject *stored = record(all, i, STORED_FIELDS);
        PyObject *block = stored == NULL ? NULL : PyTuple_GET_ITEM(stored, STORED_BLOCK);
        if (block != NULL && Py_TYPE(block) != type) {
            type = Py_TYPE(block);
            text = slot_of(type, args[1]);
            title = slot_of(type, args[2]);
        }
        if (block == NULL || !add_text(result, block, args[1], text) || !add_text(result, block, args[2], title))
            Py_CLEAR(result);
    }
    Py_XDECREF(all);
    return result;
}

/* Whether the blocks are distinct and stand in full; -1 is an error. */
static int in_full(PyObject *blocks)
{
    Py_ssize_t count = PyTuple_GET_SIZE(blocks);
    PyObject *seen = PySet_New(NULL);
    int right = seen == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; right == 1 && i < count; i++) {
        PyObject *block = record(blocks, i, FIELDS);
        if (block == NULL || PySet_Add(seen, PyTuple_GET_ITEM(block, ID)) < 0)
            right = -1;
        else if (PyTuple_GET_ITEM(block, ANNOTATION) != Py_None)
            right = 0;
    }
    if (right == 1)
        right = PySet_GET_SIZE(seen) == count;
    Py_XDECREF(seen);
    return right;
}

PyDoc_STRVAR(columns_doc, "columns(blocks) -> (identities, lengths, positions) as tuples, or None unless all are distinct and in full.");

static PyObject *columns(PyObject *module, PyObject *blocks)
{
    static const int fields[] = {ID, TOKENS, POSITION};
    if (!PyTuple_Check(blocks)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of blocks was expected");
        return NULL;
    }
    int full = in_full(blocks);
    if (full < 0)
        return NULL;
    if (!full)
        Py_RETURN_NONE;
    PyObject *result = PyTuple_New(3);
    for (int column = 0; result != NULL && column < 3; column++) {
        Py_ssize_t count = PyTuple_GET_SIZE(blocks);
        PyObject *values = PyTuple_New(count);
        if (values == NULL) {
            Py_CLEAR(result);
            break;
        }
        for (Py_ssize_t i = 0; i < count; i++)
            PyTuple_SET_ITEM(values, i, Py_NewRef(PyTuple_GET_ITEM(PyTuple_GET_ITEM(blocks, i), fields[column])));
        PyTuple_SET_ITEM(result, column, values);
    }
    return result;
}

PyDoc_STRVAR(lengths_doc, "lengths(stored) -> a dict: the length of each block by its identity, in order; of copies the last says.");

static PyObject *lengths(PyObject *module, PyObject *stored)
{
    PyObject *all = PySequence_Fast(stored, "a sequence of records was expected");
    PyObject *result = all == NULL ? NULL : PyDict_New();
    for (Py_ssize_t i = 0; result != NULL && i < PySequence_Fast_GET_SIZE(all); i++) {
        PyObject *item = record(all, i, STORED_FIELDS);
        if (item == NULL ||
            PyDict_SetItem(result, PyTuple_GET_ITEM(item, STORED_ID), PyTuple_GET_ITEM(item, STORED_TOKENS)) < 0)
            Py_CLEAR(result);
    }
    Py_XDECREF(all);
    return result;
}

PyDoc_STRVAR(made_doc, "made(type, names, values) -> a new object with these attributes, as `type.__init__` would set them.");

static PyObject *made(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!arguments(nargs, 3))
        return NULL;
    if (!PyType_Check(args[0]) || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) ||
        PyTuple_GET_SIZE(args[1]) != PyTuple_GET_SIZE(args[2])) {
        PyErr_SetString(PyExc_TypeError, "a type, names, and a value for each were expected");
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)args[0];
    PyObject *nothing = PyTuple_New(0);
    PyObject *result = nothing == NULL ? NULL : PyBaseObject_Type.tp_new(type, nothing, NULL);
    Py_XDECREF(nothing);
    for (Py_ssize_t i = 0; result != NULL && i < PyTuple_GET_SIZE(args[1]); i++) {
        PyObject *name = PyTuple_GET_ITEM(args[1], i), *value = PyTuple_GET_ITEM(args[2], i);
        Py_ssize_t slot = slot_of(type, name);
        if (slot)
            Py_XSETREF(*at_slot(result, slot), Py_NewRef(value));
        else if (PyObject_GenericSetAttr(result, name, value) < 0)
            Py_CLEAR(result);
    }
    return result;
}

PyDoc_STRVAR(named_doc, "named(order, labels, most) -> a list: the labels of the ranks below `most`, of which there are more in `order`,\n"
                        "a permutation; None where they come first as they are.");

static PyObject *named(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!arguments(nargs, 3))
        return NULL;
    Py_ssize_t most = PyLong_AsSsize_t(args[2]), moved = 0, seen = 0;
    if (most == -1 && PyErr_Occurred())
        return NULL;
    if (!PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[1]) ||
        most < 0 || most > PyTuple_GET_SIZE(args[0])) {
        PyErr_SetString(PyExc_TypeError, "ranks, and a label for each were expected");
        return NULL;
    }
    PyObject *result = PyList_New(most);
    for (Py_ssize_t i = 0; result != NULL && i < PyTuple_GET_SIZE(args[0]); i++) {
        Py_ssize_t rank = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[0], i));
        if (rank == -1 && PyErr_Occurred())
            Py_CLEAR(result);
        else if (rank >= 0 && rank < most && PyList_GET_ITEM(result, rank) == NULL) {
            PyList_SET_ITEM(result, rank, Py_NewRef(PyTuple_GET_ITEM(args[1], i)));
            moved |= rank != i;
            seen++;
        }
    }
    if (result != NULL && seen == most && moved)
        return result;
    Py_XDECREF(result);
    if (PyErr_Occurred())
        return NULL;
    if (seen == most)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "a permutation was expected");
    return NULL;
}

static PyMethodDef methods[] = {
    {"lengths", lengths, METH_O, lengths_doc},
    {"made", (PyCFunction)(void (*)(void))made, METH_FASTCALL, made_doc},
    {"named", (PyCFunction)(void (*)(void))named, METH_FASTCALL, named_doc},
    {"planned", (PyCFunction)(void (*)(void))planned, METH_FASTCALL, planned_doc},
    {"texts", (PyCFunction)(void (*)(void))texts, METH_FASTCALL, texts_doc},
    {"columns", columns, METH_O, columns_doc},
    {NULL, NULL, 0, NULL},
};

MODULE(_planned, "Blocks of plans, compiled.", methods)
