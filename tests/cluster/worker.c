/* The only program in the cluster's images: a container that uses GPUs, or waits.
 *
 * worker pause
 * worker use [stubborn] [fork] [for=SECONDS] [exit=STATUS] [memory=MIB] NAME...
 *
 * NAME is a file below /dev, or `given`: each nvidiaN and nvidia-caps/nvidia-capN that is there. `use` opens
 * nvidia-uvm, then those, as a CUDA process does, and keeps them.
 * stubborn: SIGTERM is ignored. fork: a child that inherits all does the same. for=: it ends after so long,
 * with the status of exit=. memory= is read by the stand-in for the driver, from the command line (driver.py).
 * What cannot be opened ends it with status 3, so that no test passes for the wrong reason. */

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal_number)
{
    (void)signal_number;
    _exit(0);
}

static void open_device(const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "/dev/%s", name);
    if (open(path, O_RDWR | O_NONBLOCK | O_NOCTTY) < 0) {
        perror(path);
        exit(3);
    }
}

/* What every CUDA process has mapped beside the driver: its libraries, and memory shared with its workers. */
static void map_file(const char *path, int flags, int mapping)
{
    int file = open(path, flags, 0600);
    if (file < 0 || (flags & O_CREAT && ftruncate(file, 4096) != 0)
        || mmap(NULL, 4096, PROT_READ, mapping, file, 0) == MAP_FAILED) {
        perror(path);
        exit(3);
    }
    close(file);
}

static void open_all(const char *folder, const char *prefix)
{
    char path[512];
    struct dirent *entry;
    snprintf(path, sizeof path, "/dev/%s", folder);
    DIR *directory = opendir(path);
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        size_t length = strlen(prefix);
        if (strncmp(entry->d_name, prefix, length) == 0 && isdigit((unsigned char)entry->d_name[length])) {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            open_device(path);
        }
    }
    if (directory != NULL)
        closedir(directory);
}

int main(int argc, char **argv)
{
    int with_child = 0, status = 0;
    unsigned seconds = 0;

    /* The first process of a pid namespace gets no signal that it does not handle. */
    signal(SIGTERM, end);
    signal(SIGINT, end);
    if (argc < 2 || strcmp(argv[1], "use") != 0) {
        for (;;) {
            pause();
            while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
        }
    }
    prctl(PR_SET_NAME, "python3");
    map_file("/usr/lib/libnvidia-work.so.1", O_RDONLY, MAP_PRIVATE);
    map_file("/dev/shm/work", O_RDWR | O_CREAT, MAP_SHARED);
    open_device("nvidia-uvm");
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "stubborn") == 0)
            signal(SIGTERM, SIG_IGN);
        else if (strcmp(argv[i], "fork") == 0)
            with_child = 1;
        else if (strncmp(argv[i], "for=", 4) == 0)
            seconds = (unsigned)atoi(argv[i] + 4);
        else if (strncmp(argv[i], "exit=", 5) == 0)
            status = atoi(argv[i] + 5);
        else if (strcmp(argv[i], "given") == 0) {
            open_all(".", "nvidia");
            open_all("nvidia-caps", "nvidia-cap");
        }
        else if (strncmp(argv[i], "memory=", 7) != 0)
            open_device(argv[i]);
    }
    if (with_child && fork() < 0)
        return 4;
    if (seconds != 0) {
        while ((seconds = sleep(seconds)) != 0)
            ;
        return status;
    }
    for (;;)
        pause();
}
