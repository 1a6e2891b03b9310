/* The usual store call, compiled: the counters of all limits are current and have room, so the request is admitted.

   `take_usual` works on the objects of the Python modules beside it. It first checks everything. If any detail is unusual, such as
   a ban, a full limit, an ended window or a new counter, it changes nothing and returns None, and `Counters.take` decides in
   Python. So the Python form is complete, and tests compare both. `compiled.py` passes the classes; their attributes are slots,
   which are read and written at their offsets. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define MAX_CHARGES 32

/* Offsets of attributes in their objects. */
typedef struct { PyTypeObject *type; Py_ssize_t at[8]; } Layout;
enum { CALL_ID, CALL_PLAN, CALL_CHARGES };
enum { PLAN_BAN_SUBJECT, PLAN_IS_FREE, PLAN_LEASES };
enum { CHARGE_NAME, CHARGE_KEY, CHARGE_CEILING, CHARGE_COST, CHARGE_REQUIRED, CHARGE_OVERFLOW };
enum { FIXED_COUNT, FIXED_END, FIXED_LENGTH };
enum { SLIDING_WIDTH, SLIDING_RETENTION, SLIDING_START, SLIDING_COUNT, SLIDING_TOTAL, SLIDING_OLDER };
enum { DICT_SEGMENTS, DICT_MASK };
enum { TABLE_COUNTERS };
enum { RECENT_CALL, RECENT_RESULT };
enum { RESULTS_RUNNING, RESULTS_ENDED, RESULTS_ENDED_BEFORE };
enum { RESULT_KEYS };
static Layout call_layout, plan_layout, charge_layout, fixed_layout, sliding_layout, dict_layout;
static Layout fixed_table, sliding_table, lease_table, recent_layout, result_layout, results_layout;
static PyObject *empty, *zero;
static long long lease_ttl_ms;

static inline PyObject *get(PyObject *object, const Layout *layout, int index) {
    return *(PyObject **)((char *)object + layout->at[index]); /* borrowed; NULL if the attribute is not set */
}
static inline void set(PyObject *object, const Layout *layout, int index, PyObject *value) {
    PyObject **place = (PyObject **)((char *)object + layout->at[index]);
    PyObject *old = *place;
    *place = value;
    Py_XDECREF(old);
}
/* Read a number. Sets `*is_bad` if it is not a number of 62 bits: sums of two of them fit. */
static inline long long number(PyObject *value, int *is_bad) {
    int overflow = 0;
    if (value == NULL || !PyLong_CheckExact(value)) { *is_bad = 1; return 0; }
    long long result = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || result > (1LL << 61) || result < -(1LL << 61)) { *is_bad = 1; return 0; }
    return result;
}
/* Comparing texts runs no Python code, so that nothing changes between a check and the step that relies on it. */
static inline int is_text(PyObject *object) {
    return object != NULL && PyUnicode_CheckExact(object);
}
static inline int is_empty(PyObject *text) {
    return is_text(text) && !PyUnicode_GET_LENGTH(text);
}
static inline int is_of(PyObject *object, const Layout *layout) {
    return object != NULL && Py_TYPE(object) == layout->type;
}
static inline int is_dict(PyObject *object) {
    return object != NULL && PyDict_CheckExact(object);
}
static inline int is_tuple(PyObject *object) {
    return object != NULL && PyTuple_CheckExact(object);
}
/* Return the value of a key in a SegmentedDict, borrowed; NULL if it has none. Sets `*is_bad` if it is no SegmentedDict. */
static PyObject *find(PyObject *table, PyObject *key, int *is_bad) {
    *is_bad = 1;
    if (table == NULL || !is_text(key) || !PyObject_TypeCheck(table, dict_layout.type)) return NULL;
    PyObject *segments = get(table, &dict_layout, DICT_SEGMENTS);
    PyObject *mask = get(table, &dict_layout, DICT_MASK);
    if (segments == NULL || !PyList_CheckExact(segments) || mask == NULL || !PyLong_CheckExact(mask)) return NULL;
    long bits = PyLong_AsLong(mask);
    if (bits < 0) { PyErr_Clear(); return NULL; }
    Py_ssize_t index = bits ? (Py_ssize_t)((PyObject_Hash(key) >> 48) & bits) : 0;
    if (index >= PyList_GET_SIZE(segments)) return NULL;
    PyObject *segment = PyList_GET_ITEM(segments, index);
    if (!PyDict_CheckExact(segment)) return NULL;
    *is_bad = 0;
    return PyDict_GetItemWithError(segment, key);
}

enum Kind { FIXED, SLIDING, LEASE };
typedef struct { enum Kind kind; PyObject *table, *window, *key; long long before, cost; } Step;

static PyObject *take_usual(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 5) { PyErr_SetString(PyExc_TypeError, "take_usual needs tables, bans, results, call and now_ms"); return NULL; }
    PyObject *tables = args[0], *bans = args[1], *results = args[2], *call = args[3], *now = args[4];
    int is_bad = 0;
    long long now_ms = number(now, &is_bad);
    if (Py_TYPE(call) != call_layout.type || Py_TYPE(results) != results_layout.type || !PyDict_CheckExact(tables)
        || !PyObject_TypeCheck(bans, dict_layout.type)) Py_RETURN_NONE;
    PyObject *plan = get(call, &call_layout, CALL_PLAN), *charges = get(call, &call_layout, CALL_CHARGES);
    PyObject *id = get(call, &call_layout, CALL_ID);
    if (!is_of(plan, &plan_layout) || !is_tuple(charges) || !is_text(id)) Py_RETURN_NONE;
    Py_ssize_t size = PyTuple_GET_SIZE(charges);
    PyObject *running = get(results, &results_layout, RESULTS_RUNNING);
    for (int place = RESULTS_RUNNING; place <= RESULTS_ENDED_BEFORE; place++) { /* A repeated call has a stored result. */
        PyObject *known = get(results, &results_layout, place);
        if (!is_dict(known)) Py_RETURN_NONE;
        int has = PyDict_Contains(known, id);
        if (has < 0) return NULL;
        if (has) Py_RETURN_NONE;
    }
    if (is_bad || !size || size > MAX_CHARGES || get(plan, &plan_layout, PLAN_IS_FREE) != Py_False) Py_RETURN_NONE;
    if (find(bans, get(plan, &plan_layout, PLAN_BAN_SUBJECT), &is_bad) != NULL || is_bad) Py_RETURN_NONE;
    if (PyErr_Occurred()) return NULL;
    Step steps[MAX_CHARGES];
    for (Py_ssize_t index = 0; index < size; index++) {
        PyObject *charge = PyTuple_GET_ITEM(charges, index);
        if (Py_TYPE(charge) != charge_layout.type) Py_RETURN_NONE;
        PyObject *key = get(charge, &charge_layout, CHARGE_KEY), *name = get(charge, &charge_layout, CHARGE_NAME);
        if (!is_text(key) || !is_text(name)) Py_RETURN_NONE;
        PyObject *table = PyDict_GetItemWithError(tables, name);
        if (table == NULL) { if (PyErr_Occurred()) return NULL; Py_RETURN_NONE; }
        Step *step = &steps[index];
        step->key = key;
        step->cost = number(get(charge, &charge_layout, CHARGE_COST), &is_bad);
        long long before = 0;
        int is_wrong = 0;
        if (Py_TYPE(table) == fixed_table.type) {
            PyObject *window = find(get(table, &fixed_table, TABLE_COUNTERS), key, &is_wrong);
            if (window == NULL || Py_TYPE(window) != fixed_layout.type) { if (PyErr_Occurred()) return NULL; Py_RETURN_NONE; }
            long long window_end_ms = number(get(window, &fixed_layout, FIXED_END), &is_bad);
            long long length_ms = number(get(window, &fixed_layout, FIXED_LENGTH), &is_bad);
            before = number(get(window, &fixed_layout, FIXED_COUNT), &is_bad);
            if (window_end_ms <= now_ms || window_end_ms - now_ms > length_ms) Py_RETURN_NONE;
            step->kind = FIXED; step->window = window;
        } else if (Py_TYPE(table) == sliding_table.type) {
            if (!index) Py_RETURN_NONE;
            PyObject *window = find(get(table, &sliding_table, TABLE_COUNTERS), key, &is_wrong);
            if (is_wrong) Py_RETURN_NONE;
            if (window == NULL) {
                if (PyErr_Occurred()) return NULL;
                /* Only a meter is charged later. A new counter may need room in the table. */
                if (step->cost || !is_empty(get(charge, &charge_layout, CHARGE_OVERFLOW))) Py_RETURN_NONE;
            } else {
                if (Py_TYPE(window) != sliding_layout.type) Py_RETURN_NONE;
                long long retention_ms = number(get(window, &sliding_layout, SLIDING_RETENTION), &is_bad);
                long long width_ms = number(get(window, &sliding_layout, SLIDING_WIDTH), &is_bad);
                long long start_ms = number(get(window, &sliding_layout, SLIDING_START), &is_bad);
                PyObject *older = get(window, &sliding_layout, SLIDING_OLDER);
                long long oldest_ms = start_ms;
                if (older != Py_None) {
                    if (older == NULL || !PyList_CheckExact(older) || !PyList_GET_SIZE(older)) Py_RETURN_NONE;
                    oldest_ms = number(PyList_GET_ITEM(older, 0), &is_bad);
                }
                if (oldest_ms + retention_ms <= now_ms || start_ms > now_ms) Py_RETURN_NONE;
                if (step->cost && now_ms >= start_ms + width_ms) Py_RETURN_NONE;
                before = number(get(window, &sliding_layout, SLIDING_TOTAL), &is_bad)
                    + number(get(window, &sliding_layout, SLIDING_COUNT), &is_bad);
            }
            step->kind = SLIDING; step->window = window;
        } else if (Py_TYPE(table) == lease_table.type) {
            if (!index) Py_RETURN_NONE;
            PyObject *by_key = get(table, &lease_table, TABLE_COUNTERS);
            if (!is_dict(by_key)) Py_RETURN_NONE;
            PyObject *leases = PyDict_GetItemWithError(by_key, key);
            if (leases == NULL) {
                if (PyErr_Occurred()) return NULL;
                if (!is_empty(get(charge, &charge_layout, CHARGE_OVERFLOW))) Py_RETURN_NONE;
            } else {
                Py_ssize_t position = 0;
                PyObject *first_id, *first_until;
                if (!PyDict_CheckExact(leases) || !PyDict_Next(leases, &position, &first_id, &first_until)) Py_RETURN_NONE;
                long long until_ms = number(first_until, &is_bad);
                if (until_ms <= now_ms || until_ms - now_ms > lease_ttl_ms) Py_RETURN_NONE;
                int has = PyDict_Contains(leases, id);
                if (has < 0) return NULL;
                if (has) Py_RETURN_NONE;
                before = PyDict_GET_SIZE(leases);
            }
            step->kind = LEASE; step->window = leases; step->table = by_key;
        } else
            Py_RETURN_NONE;
        long long required = number(get(charge, &charge_layout, CHARGE_REQUIRED), &is_bad);
        long long ceiling = number(get(charge, &charge_layout, CHARGE_CEILING), &is_bad);
        if (is_bad || before + required > ceiling) Py_RETURN_NONE;
        step->before = before;
    }
    if (!steps[0].cost) Py_RETURN_NONE;
    /* From here on, objects are created, so that a garbage collection may run, and with it any code: hold the counters. */
    PyObject *result = NULL, *recent = NULL, *until = NULL;
    int is_done = 0;
    for (Py_ssize_t index = 0; index < size; index++) Py_XINCREF(steps[index].window);
    PyObject *counts = PyTuple_New(size);
    if (counts == NULL) goto ended;
    for (Py_ssize_t index = 0; index < size; index++) {
        PyObject *value = PyLong_FromLongLong(steps[index].before);
        if (value == NULL) { Py_DECREF(counts); goto ended; }
        PyTuple_SET_ITEM(counts, index, value);
    }
    PyObject *end = get(steps[0].window, &fixed_layout, FIXED_END);
    PyObject *values[] = {Py_True, now, counts, empty, empty, empty, PyTuple_GET_ITEM(counts, 0), end, zero};
    result = PyObject_Vectorcall((PyObject *)result_layout.type, values, 9, NULL);
    Py_DECREF(counts);
    if (result == NULL) goto ended;
    PyObject *pair[] = {call, result};
    recent = PyObject_Vectorcall((PyObject *)recent_layout.type, pair, 2, NULL);
    until = PyLong_FromLongLong(now_ms + lease_ttl_ms);
    if (recent == NULL || until == NULL || PyDict_SetItem(running, id, recent) < 0) goto ended;
    for (Py_ssize_t index = 0; index < size; index++) {
        Step *step = &steps[index];
        if (!step->cost) continue;
        if (step->kind == LEASE) {
            if (step->window != NULL) {
                if (PyDict_SetItem(step->window, id, until) < 0) goto ended;
                continue;
            }
            PyObject *leases = PyDict_New();
            if (leases == NULL || PyDict_SetItem(leases, id, until) < 0 || PyDict_SetItem(step->table, step->key, leases) < 0) {
                Py_XDECREF(leases);
                goto ended;
            }
            Py_DECREF(leases);
            continue;
        }
        const Layout *layout = step->kind == FIXED ? &fixed_layout : &sliding_layout;
        int place = step->kind == FIXED ? (int)FIXED_COUNT : (int)SLIDING_COUNT;
        int is_no_number = 0; /* It was read before. */
        PyObject *value = PyLong_FromLongLong(number(get(step->window, layout, place), &is_no_number) + step->cost);
        if (value == NULL) goto ended;
        set(step->window, layout, place, value);
    }
    is_done = 1;
ended:
    for (Py_ssize_t index = 0; index < size; index++) Py_XDECREF(steps[index].window);
    Py_XDECREF(recent);
    Py_XDECREF(until);
    if (is_done) return result;
    Py_XDECREF(result);
    return NULL;
}

/* End a request and free its leases, without storing its result. Return False if it is not running. */
static PyObject *release_usual(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) { PyErr_SetString(PyExc_TypeError, "release_usual needs tables, results and id"); return NULL; }
    PyObject *tables = args[0], *results = args[1], *id = args[2];
    PyObject *running = is_of(results, &results_layout) ? get(results, &results_layout, RESULTS_RUNNING) : NULL;
    if (!is_dict(running) || !PyDict_CheckExact(tables) || !is_text(id)) {
        PyErr_SetString(PyExc_TypeError, "release_usual needs a dict, RecentResults and a str");
        return NULL;
    }
    PyObject *recent = PyDict_GetItemWithError(running, id);
    if (recent == NULL) { if (PyErr_Occurred()) return NULL; Py_RETURN_FALSE; }
    PyObject *call = is_of(recent, &recent_layout) ? get(recent, &recent_layout, RECENT_CALL) : NULL;
    PyObject *result = call != NULL ? get(recent, &recent_layout, RECENT_RESULT) : NULL;
    PyObject *plan = is_of(call, &call_layout) ? get(call, &call_layout, CALL_PLAN) : NULL;
    PyObject *charges = plan != NULL ? get(call, &call_layout, CALL_CHARGES) : NULL;
    PyObject *indexes = is_of(plan, &plan_layout) ? get(plan, &plan_layout, PLAN_LEASES) : NULL;
    PyObject *keys = is_of(result, &result_layout) ? get(result, &result_layout, RESULT_KEYS) : NULL;
    if (!is_tuple(charges) || !is_tuple(indexes) || !is_tuple(keys)) {
        PyErr_SetString(PyExc_TypeError, "release_usual found a running request that is no RecentCall");
        return NULL;
    }
    Py_INCREF(recent);
    if (PyDict_DelItem(running, id) < 0) goto failed;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(indexes); i++) {
        Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(indexes, i));
        if (index == -1 && PyErr_Occurred()) goto failed;
        if (index < 0 || index >= PyTuple_GET_SIZE(charges)) continue;
        PyObject *charge = PyTuple_GET_ITEM(charges, index);
        if (!is_of(charge, &charge_layout)) continue;
        PyObject *key = index < PyTuple_GET_SIZE(keys) ? PyTuple_GET_ITEM(keys, index) : get(charge, &charge_layout, CHARGE_KEY);
        PyObject *name = get(charge, &charge_layout, CHARGE_NAME);
        if (!is_text(key) || !is_text(name)) continue;
        PyObject *table = PyDict_GetItemWithError(tables, name);
        if (!is_of(table, &lease_table)) { if (PyErr_Occurred()) goto failed; continue; }
        PyObject *by_key = get(table, &lease_table, TABLE_COUNTERS);
        if (!is_dict(by_key)) continue;
        PyObject *leases = PyDict_GetItemWithError(by_key, key);
        if (!is_dict(leases)) { if (PyErr_Occurred()) goto failed; continue; }
        int has = PyDict_Contains(leases, id);
        if (has < 0 || (has && PyDict_DelItem(leases, id) < 0)) goto failed;
        if (has && !PyDict_GET_SIZE(leases) && PyDict_DelItem(by_key, key) < 0) goto failed;
    }
    Py_DECREF(recent);
    Py_RETURN_TRUE;
failed:
    Py_DECREF(recent);
    return NULL;
}

static int read_layout(Layout *layout, PyObject *type, const char *const *names) {
    if (!PyType_Check(type)) { PyErr_SetString(PyExc_TypeError, "a class was expected"); return -1; }
    layout->type = (PyTypeObject *)type;
    for (int i = 0; names[i] != NULL; i++) {
        PyObject *found = PyObject_GetAttrString(type, names[i]);
        if (found == NULL) return -1;
        if (Py_TYPE(found) != &PyMemberDescr_Type || ((PyMemberDescrObject *)found)->d_member->type != T_OBJECT_EX) {
            PyErr_Format(PyExc_TypeError, "%s is not a slot", names[i]);
            Py_DECREF(found);
            return -1;
        }
        layout->at[i] = ((PyMemberDescrObject *)found)->d_member->offset;
        Py_DECREF(found);
    }
    return 0;
}
#define NAMES(...) (const char *const[]){__VA_ARGS__, NULL}

/* The classes in the order in which `compiled.py` passes them, with their attributes in the order of the enums above. */
static const struct { Layout *layout; const char *const *names; } classes[] = {
    {&call_layout, NAMES("id", "plan", "charges")},
    {&plan_layout, NAMES("ban_subject", "is_free", "lease_indexes")},
    {&charge_layout, NAMES("name", "key", "ceiling", "cost", "required", "overflow_key")},
    {&fixed_layout, NAMES("count", "end_ms", "length_ms")},
    {&sliding_layout, NAMES("width_ms", "retention_ms", "last_start_ms", "last_count", "older_total", "older")},
    {&dict_layout, NAMES("segments", "_mask")},
    {&fixed_table, NAMES("windows")},
    {&sliding_table, NAMES("counts")},
    {&lease_table, NAMES("leases_by_key")},
    {&recent_layout, NAMES("call", "result")},
    {&result_layout, NAMES("keys")},
    {&results_layout, NAMES("running", "_ended", "_ended_before")},
};

static PyObject *configure(PyObject *self, PyObject *args) {
    PyObject *types;
    long long ttl_ms;
    if (!PyArg_ParseTuple(args, "O!L", &PyTuple_Type, &types, &ttl_ms)) return NULL;
    Py_ssize_t count = (Py_ssize_t)(sizeof classes / sizeof *classes);
    if (PyTuple_GET_SIZE(types) != count) { PyErr_Format(PyExc_TypeError, "%zd classes were expected", count); return NULL; }
    Layout found[sizeof classes / sizeof *classes]; /* Nothing changes if one of the classes does not fit. */
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_layout(&found[i], PyTuple_GET_ITEM(types, i), classes[i].names) < 0) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF(found[i].type); /* The module lives as long as the process, and so do its classes. */
        *classes[i].layout = found[i];
    }
    lease_ttl_ms = ttl_ms;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, "Set the classes of the objects, and the lifetime of a lease in milliseconds."},
    {"take_usual", (PyCFunction)(void (*)(void))take_usual, METH_FASTCALL, "Charge a usual call and return its result, or None."},
    {"release_usual", (PyCFunction)(void (*)(void))release_usual, METH_FASTCALL, "End a request. Return whether it was running."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_usual_calls", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__usual_calls(void) {
    empty = PyTuple_New(0);
    zero = PyLong_FromLong(0);
    return empty == NULL || zero == NULL ? NULL : PyModule_Create(&module);
}
