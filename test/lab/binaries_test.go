// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// tinyStore builds a tiny local module under the names of all default programs. Its go command records each call.
func tinyStore(t *testing.T, root string) *store {
	t.Helper()
	goBinary, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(root, "tiny")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(source, "go.mod"), "module example.com/tiny\n\ngo 1.26\n", 0o644)
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() { println(\"tiny\") }\n", 0o644)
	tool := filepath.Join(root, "go.sh")
	write(t, tool, fmt.Sprintf("#!/bin/sh\necho \"$*\" >> %s/calls\nexec %s \"$@\"\n", root, goBinary), 0o755)
	return newTinyStore(root, tool)
}

func newTinyStore(root, tool string) *store {
	mod := "module example.com/lab\n\ngo 1.26\n\nrequire example.com/tiny v0.0.0\n\nreplace example.com/tiny => " +
		strconv.Quote(filepath.Join(root, "tiny")) + "\n"
	m := module{name: "tiny", version: "v0.0.0", mod: []byte(mod), ldflags: "-s -w"}
	c := catalog{}
	for _, name := range DefaultPrograms() {
		c[name] = program{name, "example.com/tiny", m}
	}
	return &store{dir: filepath.Join(root, "cache"), catalog: c, goTool: tool}
}

// builds counts the calls of the go command.
func builds(t *testing.T, root string) int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(content), "\n")
}

func TestBuild(t *testing.T) {
	t.Run("a program is built once, runs, and is found again", func(t *testing.T) {
		root := t.TempDir()
		s := tinyStore(t, root)
		for range 2 {
			assets, err := s.ensure(t.Context(), newReporter(nil), []string{Etcd})
			if err != nil {
				t.Fatal(err)
			}
			if output, err := exec.Command(assets[Etcd]).CombinedOutput(); err != nil || string(output) != "tiny\n" {
				t.Fatalf("it says %q, %v", output, err)
			}
		}
		if n := builds(t, root); n != 1 {
			t.Errorf("it was built %d times", n)
		}
	})
	t.Run("two at once build each program once", func(t *testing.T) {
		root := t.TempDir()
		first := tinyStore(t, root)
		var both sync.WaitGroup
		for _, s := range []*store{first, newTinyStore(root, first.goTool)} {
			both.Go(func() {
				if _, err := s.ensure(t.Context(), newReporter(nil), []string{Etcd, Kubectl}); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if n := builds(t, root); n != 2 {
			t.Errorf("two programs took %d builds", n)
		}
	})
	t.Run("a build that does not compile shows the output, what to do, and leaves nothing", func(t *testing.T) {
		root := t.TempDir()
		s := tinyStore(t, root)
		write(t, filepath.Join(root, "tiny", "main.go"), "package main\n\nfunc main() { nonsense() }\n", 0o644)
		_, err := s.ensure(t.Context(), newReporter(nil), []string{Etcd})
		if err == nil {
			t.Fatal("it did not err")
		}
		for _, want := range []string{"build etcd", "undefined: nonsense", "hint:", "GOPROXY"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error lacks %q: %v", want, err)
			}
		}
		assertNoBinary(t, s)
	})
	t.Run("an unknown program is refused by name", func(t *testing.T) {
		_, err := tinyStore(t, t.TempDir()).ensure(t.Context(), newReporter(nil), []string{"kube-nothing"})
		if err == nil || !strings.Contains(err.Error(), `"kube-nothing"`) {
			t.Fatalf("got %v", err)
		}
	})
}

func assertNoBinary(t *testing.T, s *store) {
	t.Helper()
	if exists(filepath.Join(s.dir, Etcd)) {
		t.Error("there is a binary")
	}
	if left := glob(t, s.dir, ".tmp-*"); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// stuckGo is a go command that writes half a binary, writes its PID to a pipe and hangs.
const stuckGo = `#!/bin/sh
while [ "$1" != -o ]; do shift; done
printf half > "$2"
echo $$ > %s/pipe
exec sleep 300
`

// stuckStore returns a store whose build hangs, and a function that waits until it hangs and returns the PID of its go
// command.
func stuckStore(t *testing.T, root string) (*store, func() int) {
	t.Helper()
	tinyStore(t, root)
	write(t, filepath.Join(root, "stuck.sh"), fmt.Sprintf(stuckGo, root), 0o755)
	if output, err := exec.Command("mkfifo", filepath.Join(root, "pipe")).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", output, err)
	}
	return newTinyStore(root, filepath.Join(root, "stuck.sh")), func() int {
		content, err := os.ReadFile(filepath.Join(root, "pipe"))
		if err != nil {
			t.Fatal(err)
		}
		return atoi(t, string(content))
	}
}

// helperBuild runs until it is killed.
func helperBuild(dir string) error {
	fmt.Println("building")
	_, err := newTinyStore(dir, filepath.Join(dir, "stuck.sh")).ensure(context.Background(), newReporter(nil), []string{Etcd})
	return err
}

func TestInterruptedBuild(t *testing.T) {
	t.Run("a cancelled build ends its processes and leaves no binary", func(t *testing.T) {
		s, waitUntilStuck := stuckStore(t, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := s.ensure(ctx, newReporter(nil), []string{Etcd})
			result <- err
		}()
		pid := waitUntilStuck()
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if alive(pid) {
			t.Error("the go command is alive")
		}
		assertNoBinary(t, s)
	})
	t.Run("a killed build takes its processes along, and the next one starts afresh", func(t *testing.T) {
		root := t.TempDir()
		_, waitUntilStuck := stuckStore(t, root)
		helper, _ := startHelper(t, "build", root)
		pid := waitUntilStuck()
		killHelper(helper)
		eventually(t, "the go command dies", func() bool { return !alive(pid) })

		s := tinyStore(t, root)
		if exists(filepath.Join(s.dir, Etcd)) {
			t.Fatal("half a binary has the final name")
		}
		assets, err := s.ensure(t.Context(), newReporter(nil), []string{Etcd})
		if err != nil {
			t.Fatal(err)
		}
		if output, err := exec.Command(assets[Etcd]).CombinedOutput(); err != nil {
			t.Errorf("%s: %v", output, err)
		}
		if left := glob(t, s.dir, ".tmp-*"); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	})
}

func TestWaitingForTheLock(t *testing.T) {
	root := t.TempDir()
	s := tinyStore(t, root)
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := acquire(t.Context(), filepath.Join(s.dir, "lock"), newReporter(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("a waiter that is cancelled gives up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.ensure(ctx, newReporter(nil), []string{Etcd}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a waiter reports the process that it waits for, and goes on after it", func(t *testing.T) {
		output := &watchedOutput{}
		result := make(chan error, 1)
		go func() {
			_, err := s.ensure(t.Context(), newReporter(output), []string{Etcd})
			result <- err
		}()
		want := fmt.Sprintf("waiting for another run (pid %d since", os.Getpid())
		eventually(t, want, func() bool { return strings.Contains(output.String(), want) })
		if n := builds(t, root); n != 0 {
			t.Error("it built without the lock")
		}
		lock.release()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

func TestDownload(t *testing.T) {
	t.Run("what can be downloaded is not built", func(t *testing.T) {
		root := t.TempDir()
		s := tinyStore(t, root)
		s.download = func(_ context.Context, into string) (string, error) {
			dir := filepath.Join(into, "k8s")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return "", err
			}
			for _, name := range envtestPrograms() {
				write(t, filepath.Join(dir, name), "#!/bin/sh\n", 0o755)
			}
			return dir, nil
		}
		assets, err := s.ensure(t.Context(), newReporter(nil), DefaultPrograms())
		if err != nil {
			t.Fatal(err)
		}
		if dir, err := assets.EnvtestDir(); err != nil || dir != filepath.Join(s.dir, "envtest", "k8s") {
			t.Errorf("the envtest programs are in %q, %v", dir, err)
		}
		if n := builds(t, root); n != 1 {
			t.Errorf("the one program that envtest lacks took %d builds", n)
		}
	})
	t.Run("a refused download leads to a build with the reason, and is remembered", func(t *testing.T) {
		root := t.TempDir()
		s := tinyStore(t, root)
		asked := 0
		s.download = func(context.Context, string) (string, error) {
			asked++
			return "", errors.New("no route to the index")
		}
		output := &watchedOutput{}
		for _, name := range []string{Etcd, APIServer} {
			if _, err := s.ensure(t.Context(), newReporter(output), []string{name}); err != nil {
				t.Fatal(err)
			}
		}
		if asked != 1 || builds(t, root) != 2 {
			t.Errorf("asked %d times, built %d", asked, builds(t, root))
		}
		if !strings.Contains(output.String(), "no route to the index") {
			t.Errorf("it does not say why: %s", output)
		}
	})
	t.Run("a program that envtest does not have is never asked for", func(t *testing.T) {
		s := tinyStore(t, t.TempDir())
		s.download = func(context.Context, string) (string, error) {
			t.Error("it was asked for")
			return "", errors.New("no")
		}
		if _, err := s.ensure(t.Context(), newReporter(nil), []string{ControllerManager}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAssetsFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, Etcd), "", 0o755)
	write(t, filepath.Join(dir, Kubectl), "", 0o644)
	t.Run("it gives what it holds, and the rest is looked for elsewhere", func(t *testing.T) {
		found, rest, err := fromAssetsFolder(dir, []string{Etcd, APIServer, Kubectl})
		if err != nil || found[Etcd] != filepath.Join(dir, Etcd) || strings.Join(rest, " ") != "kube-apiserver kubectl" {
			t.Errorf("found %v, rest %v, %v", found, rest, err)
		}
	})
	t.Run("a folder that does not exist is an error that says what to do", func(t *testing.T) {
		_, _, err := fromAssetsFolder(filepath.Join(dir, "none"), []string{Etcd})
		if err == nil || !strings.Contains(err.Error(), "unset it") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("programs of different folders are not an envtest folder", func(t *testing.T) {
		if dir, err := (Assets{Etcd: "/a/etcd", APIServer: "/b/kube-apiserver", Kubectl: "/a/kubectl"}).EnvtestDir(); err == nil {
			t.Errorf("got %s", dir)
		}
	})
}

func TestReporterReportsEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		output := &watchedOutput{}
		err := newReporter(output).during("building x (1 of 2)", func() error {
			<-time.After(25 * time.Second)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := "lab: building x (1 of 2)\nlab: building x (1 of 2), 10s\nlab: building x (1 of 2), 20s\n" +
			"lab: building x (1 of 2): done after 25s\n"
		if got := output.String(); got != want {
			t.Errorf("got:\n%s", got)
		}
	})
}
