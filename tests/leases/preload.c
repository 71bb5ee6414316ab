/* Loaded before libc into processes under test.
 *
 * readlink of one name forks: both processes go on after it, the child with the calling thread alone. The child ends with
 * its parent.
 *
 * gettimeofday and clock_gettime(CLOCK_REALTIME) are shifted by as many microseconds as the file says that
 * BUDGETD_TEST_SHIFT names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("BUDGETD_TEST_SHIFT");
    int file = name ? open(name, O_RDONLY) : -1;
    if (file >= 0) {
        void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) {
            shift = mapped;
        }
        close(file);
    }
}

static int64_t shift_us(void) {
    return shift ? *shift : 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &time);
    int64_t us = time.tv_sec * INT64_C(1000000) + time.tv_nsec / 1000 + shift_us();
    now->tv_sec = us / 1000000;
    now->tv_usec = us % 1000000;
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (syscall(SYS_clock_gettime, clock, time) != 0) {
        return -1;
    }
    if (clock == CLOCK_REALTIME) {
        time->tv_sec += shift_us() / 1000000;
    }
    return 0;
}

time_t time(time_t *out) {
    struct timeval now;
    gettimeofday(&now, NULL);
    if (out) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}

ssize_t readlink(const char *restrict path, char *restrict buffer, size_t size) {
    if (strcmp(path, "/budgetd-test/fork") == 0) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        }
        errno = ENOENT;
        return -1;
    }
    return syscall(SYS_readlink, path, buffer, size);
}
