/* Order within one request, compiled: `order_blocks` of ordering.py where no block is repeated. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_buffers.h"

#define FEW 64

/* The place of each block; NULL is an error, and fewer than the blocks are where one is repeated. */
static PyObject *places_of(PyObject *blocks)
{
    PyObject *places = PyDict_New();
    for (Py_ssize_t i = 0; places != NULL && i < PyTuple_GET_SIZE(blocks); i++) {
        PyObject *place = PyLong_FromSsize_t(i);
        if (place == NULL || PyDict_SetItem(places, PyTuple_GET_ITEM(blocks, i), place) < 0)
            Py_CLEAR(places);
        Py_XDECREF(place);
    }
    return places;
}

/* Puts the places of the blocks of a prefix into `order`, and marks them. */
static int lead(PyObject *places, PyObject *prefix, PyObject *order, unsigned char *taken)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(prefix); i++) {
        PyObject *place = PyDict_GetItemWithError(places, PyTuple_GET_ITEM(prefix, i));
        Py_ssize_t at = place == NULL ? 0 : PyLong_AsSsize_t(place);
        if (place == NULL || taken[at]) {
            if (!PyErr_Occurred())
                PyErr_SetObject(PyExc_KeyError, PyTuple_GET_ITEM(prefix, i));
            return 0;
        }
        taken[at] = 1;
        PyTuple_SET_ITEM(order, i, Py_NewRef(place));
    }
    return 1;
}

/* The other places, in rising order. */
static int follow(PyObject *order, Py_ssize_t done, const unsigned char *taken)
{
    for (Py_ssize_t at = 0; done < PyTuple_GET_SIZE(order); at++) {
        PyObject *place = taken[at] ? NULL : PyLong_FromSsize_t(at);
        if (place != NULL)
            PyTuple_SET_ITEM(order, done++, place);
        else if (!taken[at])
            return 0;
    }
    return 1;
}

PyDoc_STRVAR(order_doc, "order(blocks, prefix) -> a tuple of places, those of the prefix first; None where a block is repeated.");

static PyObject *order(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (!arguments(nargs, 2))
        return NULL;
    if (!PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[1]) > PyTuple_GET_SIZE(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a tuple of blocks, and one of some of them were expected");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(args[0]);
    PyObject *places = places_of(args[0]), *result = NULL;
    if (places == NULL)
        return NULL;
    if (PyDict_GET_SIZE(places) < count) {
        Py_DECREF(places);
        Py_RETURN_NONE;
    }
    unsigned char few[FEW] = {0}, *taken = count <= FEW ? few : PyMem_Calloc((size_t)count, 1);
    result = taken == NULL ? PyErr_NoMemory() : PyTuple_New(count);
    if (result != NULL && (!lead(places, args[1], result, taken) || !follow(result, PyTuple_GET_SIZE(args[1]), taken)))
        Py_CLEAR(result);
    if (taken != few)
        PyMem_Free(taken);
    Py_DECREF(places);
    return result;
}

static PyMethodDef methods[] = {
    {"order", (PyCFunction)(void (*)(void))order, METH_FASTCALL, order_doc},
    {NULL, NULL, 0, NULL},
};

MODULE(_ordering, "Order within one request, compiled.", methods)
