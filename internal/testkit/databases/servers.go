package databases

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Password is the one of the databases' user clusterd.
const Password = "no-secret-but-must-not-be-seen"

// Postgres starts a PostgreSQL on m, at a port; 0 is for any.
func Postgres(t testing.TB, m Machine, at int) *Server {
	t.Helper()
	return postgres(t, m, at).begin(t)
}

// SecurePostgres starts a PostgreSQL that takes encrypted connections only, of clients with a certificate of the user.
func SecurePostgres(t testing.TB, m Machine, at int, c Certificates) *Server {
	t.Helper()
	s := postgres(t, m, at)
	dir := filepath.Dir(s.log)
	for _, file := range []string{c.CA, c.ServerCert, c.ServerKey} {
		secret := filepath.Join(dir, filepath.Base(file))
		copyFile(t, m.Path(file), m.Path(secret))
		if err := errors.Join(os.Chmod(m.Path(secret), 0o600), os.Chown(m.Path(secret), unprivileged, unprivileged)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(m.Path(dir+"/data/pg_hba.conf"), []byte("hostssl all all all cert\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.command = append(s.command, "-c", "ssl=on", "-c", "ssl_ca_file="+dir+"/ca.crt", "-c", "ssl_cert_file="+dir+"/server.crt", "-c", "ssl_key_file="+dir+"/server.key")
	s.Endpoint = "postgres://clusterd@" + s.address + "/cluster"
	return s.begin(t)
}

func postgres(t testing.TB, m Machine, at int) *Server {
	t.Helper()
	bin := filepath.Dir(find(t, "postgresql", "/usr/lib/postgresql/*/bin/initdb"))
	dir := folder(t, m, "postgres")
	secret := filepath.Join(dir, "password")
	if err := os.WriteFile(m.Path(secret), []byte(Password), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Run(drop(filepath.Join(bin, "initdb"), "-D", dir+"/data", "-U", "clusterd", "-A", "scram-sha-256", "--pwfile", secret,
		"--no-sync", "--locale=C", "--encoding=UTF8")...); err != nil {
		t.Fatal(err)
	}
	at = port(t, at)
	if err := os.WriteFile(m.Path(dir+"/data/pg_hba.conf"), []byte("host all all all scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{machine: m, address: fmt.Sprintf("%s:%d", host(m), at), log: dir + "/log", end: os.Interrupt,
		Endpoint: fmt.Sprintf("postgres://clusterd:%s@%s:%d/cluster?sslmode=disable", Password, host(m), at),
		command: drop(filepath.Join(bin, "postgres"), "-D", dir+"/data", "-k", dir, "-p", fmt.Sprint(at), "-h", host(m),
			"-c", "fsync=off", "-c", "shared_buffers=16MB")}
	return s
}

// MariaDB starts a MariaDB on m, at a port; 0 is for any.
func MariaDB(t testing.TB, m Machine, at int) *Server {
	t.Helper()
	program := find(t, "mariadb-server-core", "/usr/sbin/mariadbd")
	dir := folder(t, m, "mariadb")
	// What mariadb-install-db does; that needs programs of further packages.
	if _, err := m.Run(drop("sh", "-c", `mkdir "$1/data" && cd /usr/share/mysql && (printf "CREATE DATABASE mysql;\nUSE mysql;\n" &&
		cat mysql_system_tables.sql mysql_system_tables_data.sql) | "$2" --no-defaults --bootstrap --datadir="$1/data" --innodb-log-file-size=8M`,
		"sh", dir, program)...); err != nil {
		t.Fatal(err)
	}
	account := filepath.Join(dir, "init.sql")
	grant := fmt.Sprintf("CREATE USER IF NOT EXISTS clusterd@'%%' IDENTIFIED BY '%s';\nGRANT ALL ON *.* TO clusterd@'%%';\n", Password)
	if err := os.WriteFile(m.Path(account), []byte(grant), 0o644); err != nil {
		t.Fatal(err)
	}
	at = port(t, at)
	s := &Server{machine: m, address: fmt.Sprintf("%s:%d", host(m), at), log: dir + "/log", end: syscall.SIGTERM,
		Endpoint: fmt.Sprintf("mysql://clusterd:%s@tcp(%s:%d)/cluster", Password, host(m), at),
		command: drop(program, "--no-defaults", "--datadir="+dir+"/data", "--socket="+dir+"/sock", "--pid-file="+dir+"/pid",
			"--bind-address="+host(m), fmt.Sprintf("--port=%d", at), "--init-file="+account, "--skip-name-resolve",
			"--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=2")}
	return s.begin(t)
}

// programs are the servers that are built from Go modules.
type programs struct {
	mu   sync.Mutex
	dir  string
	made map[string]string
}

var built = programs{made: map[string]string{}}

// build makes a server's program, once a process, from its folder below this package's.
func (p *programs) build(t testing.TB, name string) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if path := p.made[name]; path != "" {
		return path
	}
	source, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/clusterd/clusterd/internal/testkit/databases").Output()
	if err != nil {
		t.Fatal(err)
	}
	if p.dir == "" {
		if p.dir, err = os.MkdirTemp("", "clusterd-databases-"); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(p.dir, name)
	c := exec.Command("go", "build", "-o", path, ".")
	c.Dir = filepath.Join(strings.TrimSpace(string(source)), name)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", name, err, out)
	}
	p.made[name] = path
	return path
}

// Clean removes what the package has built. Call it at the end of TestMain.
func Clean() {
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}

// Etcd starts a cluster of one etcd on m, at a port; 0 is for any.
func Etcd(t testing.TB, m Machine, at int) *Server {
	t.Helper()
	return etcd(t, m, at).begin(t)
}

// SecureEtcd starts an etcd that takes encrypted connections only, of clients with a certificate.
func SecureEtcd(t testing.TB, m Machine, at int, c Certificates) *Server {
	t.Helper()
	s := etcd(t, m, at)
	s.command = append(s.command, c.ServerCert, c.ServerKey, c.CA)
	s.Endpoint = "https://" + s.address
	return s.begin(t)
}

func etcd(t testing.TB, m Machine, at int) *Server {
	t.Helper()
	dir := folder(t, m, "etcd")
	copyFile(t, built.build(t, "etcd"), m.Path(dir+"/etcd"))
	address := fmt.Sprintf("%s:%d", host(m), port(t, at))
	s := &Server{machine: m, address: address, log: dir + "/log", end: syscall.SIGTERM, Endpoint: "http://" + address,
		command: drop(dir+"/etcd", dir+"/data", address)}
	return s
}

// NATS starts a NATS server with JetStream on m, at a port; 0 is for any.
func NATS(t testing.TB, m Machine, at int) *Server {
	t.Helper()
	dir := folder(t, m, "nats")
	copyFile(t, built.build(t, "nats"), m.Path(dir+"/nats"))
	at = port(t, at)
	address := fmt.Sprintf("%s:%d", host(m), at)
	s := &Server{machine: m, address: address, log: dir + "/log", end: syscall.SIGTERM,
		Endpoint: fmt.Sprintf("nats://clusterd:%s@%s", Password, address),
		command:  drop(dir+"/nats", dir+"/data", host(m), fmt.Sprint(at), "clusterd", Password)}
	return s.begin(t)
}
