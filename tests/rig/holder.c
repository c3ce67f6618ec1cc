/* A process under orders: the rig's stand-in for a GPU workload.
 *
 * Real: everything it does. The arguments are orders, carried out from left to right; then it prints one line
 * of JSON and waits. It and all that it started end when its standard input is closed, so nothing outlives the
 * rig. An order that fails ends it with a message on standard error and exit status 1.
 *
 *   --cgroup FILE        move itself by writing 0 to a cgroup.procs file
 *   --container ROOT     new mount namespace; a tmpfs on ROOT and another on ROOT/dev
 *   --bind SRC NAME      inside ROOT: bind the host's SRC over NAME
 *   --mknod NAME MAJ MIN inside ROOT: make a character device
 *   --enter              make ROOT the root directory and let go of the old one
 *   --open PATH          open read-write, no controlling terminal
 *   --opath PATH         open with O_PATH: names the file, holds nothing of it
 *   --map PATH           map one page privately and close the descriptor
 *   --unlink PATH        unlink a name that was opened: " (deleted)"
 *   --uvm-tty TTY NODE   new session, TTY as its terminal, then open NODE (5:0)
 *   --many-fds N         open N descriptors of /
 *   --name BYTES         its comm
 *   --ignore-term        ignore SIGTERM
 *   --setsid             new session
 *   --fork N             N children that inherit all descriptors and wait
 *   --double-fork        go on as a grandchild whose parents have ended
 *   --threads N          N waiting threads, started last
 *   --busy               one of the threads spins: its CPU ticks grow
 *   --vfork              wait uninterruptibly (state D) in vfork for a child without device descriptors
 *   --leader-exits       the first thread ends while the others wait: a zombie leader
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sched.h>
#include <unistd.h>

enum { MANY = 4096, STACK = 65536 };

static pid_t children[MANY];
static int child_count;
static int descriptors[MANY];
static int descriptor_count;
static pid_t tids[MANY];
static int tid_count;
static pthread_barrier_t started;
static char root[2048];

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    int code = errno;
    va_list rest;
    va_start(rest, format);
    fputs("holder: ", stderr);
    vfprintf(stderr, format, rest);
    va_end(rest);
    fprintf(stderr, ": %s\n", strerror(code));
    exit(1);
}

/* Nothing is ever sent on standard input: readable means closed. */
static void wait_for_the_end(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, -1) < 0 && errno == EINTR) {
    }
    _exit(0);
}

static void keep(int descriptor, const char *what) {
    if (descriptor < 0)
        fail("open %s", what);
    if (descriptor_count < MANY)
        descriptors[descriptor_count++] = descriptor;
}

static void write_file(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) < 0)
        fail("write %s", path);
    close(file);
}

static void map(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (file < 0)
        fail("open %s", path);
    if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0) == MAP_FAILED)
        fail("map %s", path);
    close(file);
}

static void open_uvm(const char *terminal, const char *node) {
    if (setsid() < 0)
        fail("setsid (no fork may stand before --uvm-tty)");
    signal(SIGHUP, SIG_IGN);
    int tty = open(terminal, O_RDWR | O_CLOEXEC);
    if (tty < 0)
        fail("open %s", terminal);
    if (ioctl(tty, TIOCSCTTY, 0) < 0)
        fail("take %s as terminal", terminal);
    keep(open(node, O_RDWR), node);
    close(tty);
}

static void open_many(int count) {
    struct rlimit limit = {.rlim_cur = count + 64, .rlim_max = count + 64}, now;
    getrlimit(RLIMIT_NOFILE, &now);
    if (now.rlim_max > limit.rlim_max)
        limit.rlim_max = now.rlim_max;
    if (now.rlim_cur < limit.rlim_cur && setrlimit(RLIMIT_NOFILE, &limit) < 0)
        fail("raise the limit of open files to %d", count);
    for (int i = 0; i < count; i++)
        if (open("/", O_RDONLY | O_DIRECTORY) < 0)
            fail("open / for the %dth time", i);
}

/* The path of a name below ROOT; its directories are made. */
static const char *inside(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
    return path;
}

static void make_container(const char *path) {
    snprintf(root, sizeof root, "%s", path);
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        fail("new mount namespace");
    if (mount("rootfs", root, "tmpfs", 0, "mode=755,size=1m") < 0)
        fail("mount a root file system on %s", root);
    if (mkdir(inside("dev"), 0755) < 0 || mount("tmpfs", inside("dev"), "tmpfs", MS_NOSUID, "mode=755,size=64k") < 0)
        fail("mount %s", inside("dev"));
    if (mkdir(inside("proc"), 0755) < 0 || mount("/proc", inside("proc"), NULL, MS_BIND, NULL) < 0)
        fail("bind %s", inside("proc"));
}

static void bind_inside(const char *source, const char *name) {
    int file = open(inside(name), O_CREAT | O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    if (file < 0)
        fail("create %s", inside(name));
    close(file);
    if (mount(source, inside(name), NULL, MS_BIND, NULL) < 0)
        fail("bind %s over %s", source, inside(name));
}

static void enter(void) {
    if (chdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        fail("enter %s", root);
}

static void fork_children(int count) {
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid < 0)
            fail("fork");
        if (pid == 0)
            wait_for_the_end();
        if (child_count < MANY)
            children[child_count++] = pid;
    }
}

static void go_on_as_grandchild(void) {
    pid_t between = fork();
    if (between < 0)
        fail("fork");
    if (between > 0) {
        waitpid(between, NULL, 0);
        _exit(0);
    }
    between = getpid();
    pid_t last = fork();
    if (last < 0)
        fail("fork");
    if (last > 0)
        _exit(0);
    while (getppid() == between)
        usleep(500);
}

static void *idle(void *index) {
    tids[(long)index] = (pid_t)syscall(SYS_gettid);
    pthread_barrier_wait(&started);
    wait_for_the_end();
    return NULL;
}

static void *spin(void *index) {
    tids[(long)index] = (pid_t)syscall(SYS_gettid);
    pthread_barrier_wait(&started);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 0) <= 0) {
    }
    _exit(0);
}

static void start_threads(int count, int busy) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_barrier_init(&started, NULL, (unsigned)count + 1);
    for (long i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, busy && i == 0 ? spin : idle, (void *)i) != 0)
            fail("start thread %ld", i);
    }
    tid_count = count;
    pthread_barrier_wait(&started);
}

static void print_list(const char *name, const int *values, int count) {
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++)
        printf("%s%d", i ? ", " : "", values[i]);
    printf("]");
}

static void report(pid_t pid, pid_t vfork_child) {
    printf("{\"pid\": %d, \"vfork_child\": %d, ", (int)pid, (int)vfork_child);
    print_list("tids", tids, tid_count);
    printf(", ");
    print_list("children", children, child_count);
    printf(", ");
    print_list("fds", descriptors, descriptor_count);
    printf("}\n");
    fflush(stdout);
}

static void wait_in_vfork(void) {
    pid_t self = getpid();
    if (vfork() == 0) {
        for (int i = 0; i < descriptor_count; i++)
            close(descriptors[i]);
        report(self, (pid_t)syscall(SYS_getpid));
        wait_for_the_end();
    }
}

int main(int argc, char **argv) {
    int threads = 0, busy = 0, leader_exits = 0, uninterruptible = 0;
    for (int i = 1; i < argc; i++) {
        const char *order = argv[i];
        const char *one = i + 1 < argc ? argv[i + 1] : "";
        const char *two = i + 2 < argc ? argv[i + 2] : "";
        const char *three = i + 3 < argc ? argv[i + 3] : "";
        if (!strcmp(order, "--cgroup"))
            write_file(one, "0"), i += 1;
        else if (!strcmp(order, "--container"))
            make_container(one), i += 1;
        else if (!strcmp(order, "--bind"))
            bind_inside(one, two), i += 2;
        else if (!strcmp(order, "--mknod")) {
            if (mknod(inside(one), S_IFCHR | 0666, makedev(atoi(two), atoi(three))) < 0)
                fail("mknod %s c %s %s", inside(one), two, three);
            i += 3;
        } else if (!strcmp(order, "--enter"))
            enter();
        else if (!strcmp(order, "--open"))
            keep(open(one, O_RDWR | O_NOCTTY | O_NONBLOCK), one), i += 1;
        else if (!strcmp(order, "--opath"))
            keep(open(one, O_PATH), one), i += 1;
        else if (!strcmp(order, "--map"))
            map(one), i += 1;
        else if (!strcmp(order, "--unlink")) {
            if (unlink(one) < 0)
                fail("unlink %s", one);
            i += 1;
        } else if (!strcmp(order, "--uvm-tty"))
            open_uvm(one, two), i += 2;
        else if (!strcmp(order, "--many-fds"))
            open_many(atoi(one)), i += 1;
        else if (!strcmp(order, "--name"))
            prctl(PR_SET_NAME, one), i += 1;
        else if (!strcmp(order, "--ignore-term"))
            signal(SIGTERM, SIG_IGN);
        else if (!strcmp(order, "--setsid")) {
            if (setsid() < 0)
                fail("setsid");
        } else if (!strcmp(order, "--fork"))
            fork_children(atoi(one)), i += 1;
        else if (!strcmp(order, "--double-fork"))
            go_on_as_grandchild();
        else if (!strcmp(order, "--threads"))
            threads = atoi(one), i += 1;
        else if (!strcmp(order, "--busy"))
            busy = 1;
        else if (!strcmp(order, "--vfork"))
            uninterruptible = 1;
        else if (!strcmp(order, "--leader-exits"))
            leader_exits = 1;
        else {
            errno = EINVAL;
            fail("order %s", order);
        }
    }
    if ((busy || leader_exits) && threads < 1)
        threads = 1;
    if (threads > MANY) {
        errno = EINVAL;
        fail("more than %d threads", MANY);
    }
    if (threads > 0)
        start_threads(threads, busy);
    if (uninterruptible)
        wait_in_vfork();
    else
        report(getpid(), 0);
    if (leader_exits) /* pthread_exit would load a library, which a root of its own lacks */
        syscall(SYS_exit, 0);
    wait_for_the_end();
}
