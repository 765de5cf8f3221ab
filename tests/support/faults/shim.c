/* Counts the system calls that change files under a folder, and ends or fails the process at the n-th.
 *
 * Preloaded (LD_PRELOAD), so it sees what Python, SQLite and Arrow do alike. What to do lies in a file that
 * FAULTS_PLAN names and every process maps: a warm parent writes the plan, forks, and the child and all that it
 * starts share one counter. Without the variable nothing is done.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { CREATE, OPEN, WRITE, TRUNCATE, SYNC, RENAME, LINK, UNLINK, MKDIR, RMDIR, CHMOD, LOCK, TOUCH, SEND };
enum action { COUNT, KILL, KILL_HALF, FAIL, FAIL_ONCE, SHORT };
enum victim { SELF, GROUP };
#define LOGGED 32768
#define NAME 88

struct event {
    int32_t kind, pid;
    char name[NAME];
};

struct plan {
    int64_t armed, action, at, error, kinds, victim, clock, length;
    char folder[512];
    int64_t count, struck;
    struct event log[LOGGED];
};

static struct plan *plan;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("FAULTS_PLAN");
    int fd = path == NULL ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (found != MAP_FAILED) plan = found;
}

/* The next function of that name: libc's. */
#define REAL(result, name, ...)                                                      \
    static result (*real)(__VA_ARGS__);                                              \
    if (real == NULL) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int below(const char *path) {
    return path != NULL && strncmp(path, plan->folder, (size_t)plan->length) == 0 &&
           (path[plan->length] == '/' || path[plan->length] == 0);
}

/* Path of a name relative to an open folder; the name of the event in `where`. */
static int concerns(int folder, const char *path, char *where) {
    char whole[PATH_MAX], link[64];
    where[0] = 0;
    if (plan == NULL || !plan->armed || path == NULL) return 0;
    if (path[0] != '/') {
        ssize_t size;
        if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        size = readlink(link, whole, sizeof whole - 1);
        if (size < 0) return 0;
        snprintf(whole + size, sizeof whole - (size_t)size, "/%s", path);
        path = whole;
    }
    if (!below(path)) return 0;
    snprintf(where, NAME, "%s", path + plan->length);
    return 1;
}

static int concerns_file(int fd, char *where) {
    char link[64], path[PATH_MAX];
    ssize_t size;
    where[0] = 0;
    if (plan == NULL || !plan->armed || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    if (!below(path)) return 0;
    snprintf(where, NAME, "%s", path + plan->length);
    return 1;
}

/* To make what is there, or remove what is not, changes nothing: such calls are not counted. */
static int there(int folder, const char *path) {
    int kept = errno, found = faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    errno = kept;
    return found;
}

static void strike(void) {
    plan->struck = 1;
    kill(plan->victim == GROUP ? 0 : getpid(), SIGKILL);
    for (;;) pause();
}

/* What is to be done with this call: nothing (0), fail with errno (1), half of it (2), then end (3). */
enum verdict { GO, REFUSE, HALF, HALF_THEN_END };

static enum verdict event(enum kind kind, const char *where) {
    int64_t number;
    if (!((plan->kinds >> kind) & 1)) return GO;
    number = __atomic_fetch_add(&plan->count, 1, __ATOMIC_SEQ_CST);
    if (number < LOGGED) {
        struct event *entry = &plan->log[number];
        entry->kind = (int32_t)kind;
        entry->pid = (int32_t)getpid();
        snprintf(entry->name, NAME, "%s", where);
    }
    if (plan->action == FAIL && number >= plan->at) {
        plan->struck = 1;
        errno = (int)plan->error;
        return REFUSE;
    }
    if (number != plan->at) return GO;
    switch (plan->action) {
    case KILL: strike(); return GO;
    case KILL_HALF: return HALF_THEN_END;
    case FAIL_ONCE: plan->struck = 1; errno = (int)plan->error; return REFUSE;
    case SHORT: plan->struck = 1; return kind == WRITE ? HALF : GO;
    default: return GO;
    }
}

#define JUDGE(kind, touched)                                                         \
    char where[NAME];                                                                \
    enum verdict verdict = (touched) ? event(kind, where) : GO;                      \
    if (verdict == REFUSE) return -1
#define ENDED(result)                                                                \
    if (verdict == HALF_THEN_END) strike();                \
    return result

/* ---- opening: only what may write or create ---- */
#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & (O_CREAT | O_TRUNC)))
static enum kind opens(int folder, const char *path, int flags) {
    return !(flags & O_CREAT) || there(folder, path) ? OPEN : CREATE;
}
#define MODE                                                                         \
    mode_t mode = 0;                                                                 \
    if (flags & (O_CREAT | O_TMPFILE)) {                                             \
        va_list rest;                                                                \
        va_start(rest, flags);                                                       \
        mode = va_arg(rest, mode_t);                                                 \
        va_end(rest);                                                                \
    }

int open(const char *path, int flags, ...) {
    MODE
    REAL(int, open, const char *, int, ...);
    JUDGE(opens(AT_FDCWD, path, flags), WRITES(flags) && concerns(AT_FDCWD, path, where));
    int result = real(path, flags, mode);
    ENDED(result);
}
int open64(const char *path, int flags, ...) {
    MODE
    REAL(int, open64, const char *, int, ...);
    JUDGE(opens(AT_FDCWD, path, flags), WRITES(flags) && concerns(AT_FDCWD, path, where));
    int result = real(path, flags, mode);
    ENDED(result);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE
    REAL(int, openat, int, const char *, int, ...);
    JUDGE(opens(folder, path, flags), WRITES(flags) && concerns(folder, path, where));
    int result = real(folder, path, flags, mode);
    ENDED(result);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE
    REAL(int, openat64, int, const char *, int, ...);
    JUDGE(opens(folder, path, flags), WRITES(flags) && concerns(folder, path, where));
    int result = real(folder, path, flags, mode);
    ENDED(result);
}
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static FILE *opened(const char *path, const char *mode, FILE *(*real)(const char *, const char *)) {
    char where[NAME];
    int writes = strpbrk(mode, "wa+") != NULL && concerns(AT_FDCWD, path, where);
    enum verdict verdict = writes ? event(opens(AT_FDCWD, path, O_CREAT), where) : GO;
    if (verdict == REFUSE) return NULL;
    FILE *result = real(path, mode);
    ENDED(result);
}
FILE *fopen(const char *path, const char *mode) {
    REAL(FILE *, fopen, const char *, const char *);
    return opened(path, mode, real);
}
FILE *fopen64(const char *path, const char *mode) {
    REAL(FILE *, fopen64, const char *, const char *);
    return opened(path, mode, real);
}

/* ---- writing ---- */
static size_t half_of(enum verdict verdict, size_t size) {
    return (verdict == HALF || verdict == HALF_THEN_END) && size > 1 ? size / 2 : size;
}
ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    JUDGE(WRITE, fd > 2 && concerns_file(fd, where));
    ssize_t result = real(fd, data, half_of(verdict, size));
    ENDED(result);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
    JUDGE(WRITE, concerns_file(fd, where));
    ssize_t result = real(fd, data, half_of(verdict, size), at);
    ENDED(result);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    JUDGE(WRITE, concerns_file(fd, where));
    ssize_t result = real(fd, data, half_of(verdict, size), at);
    ENDED(result);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    JUDGE(WRITE, fd > 2 && concerns_file(fd, where));
    int half = verdict == HALF || verdict == HALF_THEN_END;
    ssize_t result = real(fd, parts, half && count > 1 ? count / 2 : count);
    ENDED(result);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t);
    JUDGE(WRITE, concerns_file(fd, where));
    int half = verdict == HALF || verdict == HALF_THEN_END;
    ssize_t result = real(fd, parts, half && count > 1 ? count / 2 : count, at);
    ENDED(result);
}
ssize_t sendfile(int out, int in, off_t *at, size_t size) {
    REAL(ssize_t, sendfile, int, int, off_t *, size_t);
    JUDGE(WRITE, concerns_file(out, where));
    ssize_t result = real(out, in, at, half_of(verdict, size));
    ENDED(result);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t size) {
    REAL(ssize_t, sendfile64, int, int, off64_t *, size_t);
    JUDGE(WRITE, concerns_file(out, where));
    ssize_t result = real(out, in, at, half_of(verdict, size));
    ENDED(result);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
    JUDGE(WRITE, concerns_file(out, where));
    ssize_t result = real(in, from, out, to, half_of(verdict, size), flags);
    ENDED(result);
}

/* ---- one call each: name, kind, parameters, arguments, whether it concerns us ---- */
#define CALL(name, kind, parameters, arguments, touched)                             \
    int name parameters {                                                            \
        static int(*real) parameters;                                                \
        if (real == NULL) real = (int(*) parameters)dlsym(RTLD_NEXT, #name);         \
        JUDGE(kind, touched);                                                        \
        int result = real arguments;                                                 \
        ENDED(result);                                                               \
    }

CALL(ftruncate, TRUNCATE, (int fd, off_t size), (fd, size), concerns_file(fd, where))
CALL(ftruncate64, TRUNCATE, (int fd, off64_t size), (fd, size), concerns_file(fd, where))
CALL(truncate, TRUNCATE, (const char *path, off_t size), (path, size), concerns(AT_FDCWD, path, where))
CALL(truncate64, TRUNCATE, (const char *path, off64_t size), (path, size), concerns(AT_FDCWD, path, where))
CALL(posix_fallocate, TRUNCATE, (int fd, off_t at, off_t size), (fd, at, size), concerns_file(fd, where))
CALL(posix_fallocate64, TRUNCATE, (int fd, off64_t at, off64_t size), (fd, at, size), concerns_file(fd, where))
CALL(fallocate, TRUNCATE, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), concerns_file(fd, where))
CALL(fallocate64, TRUNCATE, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size),
     concerns_file(fd, where))
CALL(fsync, SYNC, (int fd), (fd), concerns_file(fd, where))
CALL(fdatasync, SYNC, (int fd), (fd), concerns_file(fd, where))
CALL(rename, RENAME, (const char *from, const char *to), (from, to), concerns(AT_FDCWD, to, where))
CALL(renameat, RENAME, (int a, const char *from, int b, const char *to), (a, from, b, to), concerns(b, to, where))
CALL(renameat2, RENAME, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags),
     concerns(b, to, where))
CALL(link, LINK, (const char *from, const char *to), (from, to), concerns(AT_FDCWD, to, where))
CALL(linkat, LINK, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags),
     concerns(b, to, where))
CALL(symlink, LINK, (const char *from, const char *to), (from, to), concerns(AT_FDCWD, to, where))
CALL(symlinkat, LINK, (const char *from, int b, const char *to), (from, b, to), concerns(b, to, where))
CALL(unlink, UNLINK, (const char *path), (path), there(AT_FDCWD, path) && concerns(AT_FDCWD, path, where))
CALL(unlinkat, UNLINK, (int folder, const char *path, int flags), (folder, path, flags),
     there(folder, path) && concerns(folder, path, where))
CALL(remove, UNLINK, (const char *path), (path), there(AT_FDCWD, path) && concerns(AT_FDCWD, path, where))
CALL(rmdir, RMDIR, (const char *path), (path), there(AT_FDCWD, path) && concerns(AT_FDCWD, path, where))
CALL(mkdir, MKDIR, (const char *path, mode_t mode), (path, mode),
     !there(AT_FDCWD, path) && concerns(AT_FDCWD, path, where))
CALL(mkdirat, MKDIR, (int folder, const char *path, mode_t mode), (folder, path, mode),
     !there(folder, path) && concerns(folder, path, where))
CALL(chmod, CHMOD, (const char *path, mode_t mode), (path, mode), concerns(AT_FDCWD, path, where))
CALL(fchmod, CHMOD, (int fd, mode_t mode), (fd, mode), concerns_file(fd, where))
CALL(fchmodat, CHMOD, (int folder, const char *path, mode_t mode, int flags), (folder, path, mode, flags),
     concerns(folder, path, where))
CALL(chown, CHMOD, (const char *path, uid_t user, gid_t group), (path, user, group),
     concerns(AT_FDCWD, path, where))
CALL(fchown, CHMOD, (int fd, uid_t user, gid_t group), (fd, user, group), concerns_file(fd, where))
CALL(flock, LOCK, (int fd, int operation), (fd, operation), concerns_file(fd, where))
CALL(utimensat, TOUCH, (int folder, const char *path, const struct timespec times[2], int flags),
     (folder, path, times, flags), concerns(folder, path, where))
CALL(futimens, TOUCH, (int fd, const struct timespec times[2]), (fd, times), concerns_file(fd, where))

/* Locks of SQLite and of lockf. */
static int locks(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}
int fcntl(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    REAL(int, fcntl, int, int, ...);
    JUDGE(LOCK, locks(command) && concerns_file(fd, where));
    int result = real(fd, command, argument);
    ENDED(result);
}
int fcntl64(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    REAL(int, fcntl64, int, int, ...);
    JUDGE(LOCK, locks(command) && concerns_file(fd, where));
    int result = real(fd, command, argument);
    ENDED(result);
}

/* ---- what is sent to a store: counted only if the plan asks for it ---- */
static int sends(int fd, char *where) {
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    if (plan == NULL || !plan->armed || !((plan->kinds >> SEND) & 1)) return 0;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0) return 0;
    snprintf(where, NAME, "socket");
    return peer.ss_family == AF_INET || peer.ss_family == AF_INET6;
}
ssize_t send(int fd, const void *data, size_t size, int flags) {
    REAL(ssize_t, send, int, const void *, size_t, int);
    JUDGE(SEND, sends(fd, where));
    ssize_t result = real(fd, data, size, flags);
    ENDED(result);
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    REAL(ssize_t, sendmsg, int, const struct msghdr *, int);
    JUDGE(SEND, sends(fd, where));
    ssize_t result = real(fd, message, flags);
    ENDED(result);
}

/* ---- the clock of the wall ---- */
static int64_t shift(void) { return plan == NULL ? 0 : plan->clock; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(int, gettimeofday, struct timeval *, void *);
    int result = real(now, zone);
    if (result == 0) now->tv_sec += shift();
    return result;
}
time_t time(time_t *kept) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (kept != NULL) *kept = now.tv_sec;
    return now.tv_sec;
}
