/* Numbers of blocks, for as long as a node has them as its own. */
#ifndef PREFIXPILOT_NUMBERS_H
#define PREFIXPILOT_NUMBERS_H

#include "_prefixes.h"

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

static int intern(Prefixes *self, PyObject *block, int32_t *id)
{
    PyObject *known = PyDict_GetItemWithError(self->ids, block);
    if (known != NULL) {
        *id = (int32_t)PyLong_AsLong(known);
        self->uses[*id]++;
        return 1;
    }
    if (PyErr_Occurred() || !room_for_id(self))
        return 0;
    int32_t next = self->unused != NONE ? self->unused : self->count_ids;
    PyObject *number = PyLong_FromLong(next);
    int kept = number != NULL && PyDict_SetItem(self->ids, block, number) == 0;
    Py_XDECREF(number);
    if (!kept)
        return 0;
    if (next == self->unused)
        self->unused = (int32_t)self->marks[next];
    else
        self->count_ids++;
    Py_INCREF(block);
    self->names[next] = block;
    self->marks[next] = 0;
    self->uses[next] = 1;
    *id = next;
    return 1;
}

/* Never fails: what is taken out stands in the dict. An error that is set stays set. */
static void release_ids(Prefixes *self, const int32_t *ids, Py_ssize_t count)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    for (Py_ssize_t i = 0; i < count; i++) {
        int32_t id = ids[i];
        if (--self->uses[id])
            continue;
        PyObject *name = self->names[id];
        if (PyDict_DelItem(self->ids, name) < 0)
            PyErr_Clear();
        self->names[id] = NULL;
        self->marks[id] = (uint32_t)self->unused;
        self->unused = id;
        Py_DECREF(name);
    }
    PyErr_Restore(type, value, trace);
}

#endif
