/*
 * pause is the first process of a pod's sandbox. It keeps the pod's namespaces
 * alive, reaps orphans when the pod shares its PID namespace, and exits with
 * status 0 on SIGINT or SIGTERM, as the pause of Kubernetes does.
 *
 * It links no C library: every pod runs one, so it is a few pages and no more.
 * The three signals stay blocked and are fetched with rt_sigtimedwait: a blocked
 * signal reaches even the init of a PID namespace, and no handler can race.
 */

#if defined(__x86_64__)

enum { SYS_RT_SIGPROCMASK = 14, SYS_RT_SIGTIMEDWAIT = 128, SYS_WAIT4 = 61, SYS_EXIT_GROUP = 231 };

static long sys(long nr, long a, long b, long c, long d)
{
	long ret;
	register long r10 __asm__("r10") = d;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return ret;
}

#elif defined(__aarch64__)

enum { SYS_RT_SIGPROCMASK = 135, SYS_RT_SIGTIMEDWAIT = 137, SYS_WAIT4 = 260, SYS_EXIT_GROUP = 94 };

static long sys(long nr, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

#else
#error "pause knows the system calls of x86_64 and aarch64 only"
#endif

enum { SIGINT = 2, SIGTERM = 15, SIGCHLD = 17, SIG_BLOCK = 0, WNOHANG = 1, SIGSET_BYTES = 8 };

#define SIGBIT(n) (1UL << ((n) - 1))

void _start(void)
{
	unsigned long set = SIGBIT(SIGINT) | SIGBIT(SIGTERM) | SIGBIT(SIGCHLD);
	long sig;

	sys(SYS_RT_SIGPROCMASK, SIG_BLOCK, (long)&set, 0, SIGSET_BYTES);
	for (;;) {
		sig = sys(SYS_RT_SIGTIMEDWAIT, (long)&set, 0, 0, SIGSET_BYTES);
		if (sig == SIGINT || sig == SIGTERM)
			sys(SYS_EXIT_GROUP, 0, 0, 0, 0);
		while (sys(SYS_WAIT4, -1, 0, WNOHANG, 0) > 0)
			;
	}
}
