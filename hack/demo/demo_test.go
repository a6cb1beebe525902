// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

func TestState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	first, err := loadState(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("the next run finds ports, token and digests of the last", func(t *testing.T) {
		first.HubPort = 4711
		if err := first.setStarted("manager", "abc"); err != nil {
			t.Fatal(err)
		}
		second, err := loadState(path)
		if err != nil {
			t.Fatal(err)
		}
		if second.HubPort != 4711 || second.DemoToken != first.DemoToken || second.StartedFrom["manager"] != "abc" {
			t.Errorf("got %+v, want %+v", second, first)
		}
	})
	t.Run("only its owner may read the token in it", func(t *testing.T) {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	})
	t.Run("a damaged one says what to do", func(t *testing.T) {
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadState(path); err == nil || !strings.Contains(err.Error(), "make demo-down") {
			t.Errorf("got %v", err)
		}
	})
}

func TestPortsAreKept(t *testing.T) {
	s, err := loadState(filepath.Join(t.TempDir(), "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.keepPort(&s.HubPort, false); err != nil || s.HubPort == 0 {
		t.Fatalf("port %d, %v", s.HubPort, err)
	}
	port := s.HubPort
	taken, err := net.Listen("tcp", address(port))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	t.Run("while the program itself has it", func(t *testing.T) {
		if err := s.keepPort(&s.HubPort, true); err != nil || s.HubPort != port {
			t.Errorf("port %d, %v", s.HubPort, err)
		}
	})
	t.Run("but not when another program has taken it", func(t *testing.T) {
		if err := s.keepPort(&s.HubPort, false); err != nil || s.HubPort == port {
			t.Errorf("port %d, %v", s.HubPort, err)
		}
	})
}

func TestLock(t *testing.T) {
	files := layout{root: t.TempDir()}
	unlock, err := files.lock()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("a second run is asked to wait", func(t *testing.T) {
		if _, err := files.lock(); err == nil || !strings.Contains(err.Error(), "another run") {
			t.Errorf("got %v", err)
		}
		if err := down(t.Context(), files, newReporter(&bytes.Buffer{})); err == nil {
			t.Error("down removed what another run works on")
		}
	})
	unlock()
	t.Run("the next one may go on", func(t *testing.T) {
		unlock, err := files.lock()
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	})
}

func TestDown(t *testing.T) {
	t.Run("it does nothing where there is no demo", func(t *testing.T) {
		files := layout{root: t.TempDir()}
		if err := down(t.Context(), files, newReporter(&bytes.Buffer{})); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(files.root); err != nil || len(entries) > 0 {
			t.Errorf("left %v, %v", entries, err)
		}
	})
	t.Run("a half-made demo goes, with its processes", func(t *testing.T) {
		files := layout{root: t.TempDir()}
		process, err := lab.Command{
			Path: "/bin/sleep", Args: []string{"300"}, LogFile: files.log(agent), PIDFile: filepath.Join(files.pids(), "agent.pid"),
		}.Start()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = process.Kill() }()
		if err := down(t.Context(), files, newReporter(&bytes.Buffer{})); err != nil {
			t.Fatal(err)
		}
		<-process.Exited()
		if _, err := os.Stat(files.dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", files.dir(), err)
		}
	})
}

func TestPrograms(t *testing.T) {
	d := &demo{files: layout{root: t.TempDir()}, out: newReporter(&bytes.Buffer{})}
	var err error
	if err = os.MkdirAll(filepath.Dir(d.files.bin("x")), 0o700); err != nil {
		t.Fatal(err)
	}
	if d.state, err = loadState(d.files.file("state.json")); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nexec sleep 300\n"
	if err := os.WriteFile(d.files.bin("drover-agent"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = stopAll(context.Background(), d.files.pids()) })
	sick, credentials := false, 0
	p := program{
		name:       agent,
		credential: func(context.Context) error { credentials++; return nil },
		healthy: func(context.Context) error {
			if sick {
				sick = false // cured by the restart
				return errors.New("ill")
			}
			return nil
		},
	}
	start := func(t *testing.T) string {
		t.Helper()
		if _, err := d.keepOrStart(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		pid, err := os.ReadFile(filepath.Join(d.files.pids(), "agent.pid"))
		if err != nil {
			t.Fatal(err)
		}
		return string(pid)
	}
	pid := start(t)
	t.Run("one that runs and is healthy is kept", func(t *testing.T) {
		if again := start(t); again != pid || credentials != 1 {
			t.Errorf("pid %s became %s, %d credentials were made", pid, again, credentials)
		}
	})
	for _, change := range []struct {
		what string
		do   func()
	}{
		{"that is ill", func() { sick = true }},
		{"that was killed", func() { _ = lab.StopDetached(t.Context(), d.files.pids(), agent) }},
		{"with other settings", func() { p.env = []string{"A=b"} }},
		{"with another configuration", func() { p.content = []byte("x") }},
		{"that was built anew", func() { _ = os.WriteFile(d.files.bin("drover-agent"), []byte(script+"# new\n"), 0o700) }},
	} {
		t.Run("one "+change.what+" is started anew, with a new credential", func(t *testing.T) {
			before, made := start(t), credentials
			change.do()
			if after := start(t); after == before || credentials != made+1 {
				t.Errorf("pid %s became %s, %d credentials were made", before, after, credentials-made)
			}
		})
	}
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, content := range []string{"first", "second", "second"} {
		if err := errors.Join(os.WriteFile(from, []byte(content), 0o600), install(from, to)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(to)
		if err != nil || string(got) != content {
			t.Errorf("the program is %q, %v, want %q", got, err, content)
		}
		if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("its mode is %v, %v: want that its owner can run it", info.Mode(), err)
		}
		// As a run that was killed between writing the program and letting it be run.
		if err := os.Chmod(to, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAwait(t *testing.T) {
	t.Run("it returns when the check succeeds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			left := 3
			err := await(t.Context(), time.Minute, func(context.Context) error {
				if left--; left > 0 {
					return errors.New("not yet")
				}
				return nil
			})
			if err != nil || left != 0 {
				t.Errorf("%v, %d left", err, left)
			}
		})
	})
	t.Run("at its limit it names the limit and the last error of the check", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			err := await(t.Context(), time.Minute, func(context.Context) error { return errors.New("not yet") })
			if err == nil || err.Error() != "not within 1m0s: not yet" {
				t.Errorf("got %v", err)
			}
		})
	})
	t.Run("it does not wait for what is hopeless", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start, cause := time.Now(), errors.New("dead")
			err := await(t.Context(), time.Minute, func(context.Context) error { return permanentError{cause} })
			if !errors.Is(err, cause) || time.Since(start) > 0 {
				t.Errorf("got %v after %s", err, time.Since(start))
			}
		})
	})
}

func TestReporter(t *testing.T) {
	var out bytes.Buffer
	r := newReporter(&out)
	synctest.Test(t, func(t *testing.T) {
		_ = r.step(t.Context(), "quiet", func(context.Context) (string, error) { time.Sleep(1500 * time.Millisecond); return "kept", nil })
		_ = r.step(t.Context(), "loud", func(context.Context) (string, error) { r.note("working"); return "", errors.New("no") })
	})
	if want := "quiet ... done (kept, 1.5s)\nloud ... \n  working\n  failed (0s)\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestListeners(t *testing.T) {
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	t.Run("what listens is found with its address, what is connected is not", func(t *testing.T) {
		found, err := parseListeners([]byte(heading +
			"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0000000000000000 100 0 0 10 0\n" +
			"   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 222 1 0000000000000000 100 0 0 10 0\n" +
			"   2: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 333 1 0000000000000000 100 0 0 10 0\n" +
			"   3: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 444 1 0 100 0 0 10 0\n"))
		want := []listener{
			{netip.MustParseAddrPort("127.0.0.1:8080"), "111"}, {netip.MustParseAddrPort("0.0.0.0:80"), "222"}, {netip.MustParseAddrPort("[::1]:22"), "444"},
		}
		if err != nil || !slices.Equal(found, want) {
			t.Errorf("got %v, %v, want %v", found, err, want)
		}
	})
	t.Run("a table in another format is an error", func(t *testing.T) {
		for _, line := range []string{"too short", "0: nonsense:1F90 x 0A x x x x x 1", "0: 0100007F:zz x 0A x x x x x 1"} {
			if _, err := parseListeners([]byte(heading + line + "\n")); err == nil {
				t.Errorf("%q was taken", line)
			}
		}
	})
}

func TestManifests(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{files: layout{root: root}}
	t.Run("the kustomizations that the demo reads do no more than list resources", func(t *testing.T) {
		for _, folder := range []string{"config/crd", "config/policy", "config/roles", "config/rbac"} {
			paths, err := d.listResources(folder)
			if err != nil || len(paths) == 0 {
				t.Errorf("find manifests: %s: %v, %v", folder, paths, err)
			}
			if _, err := d.readSources(paths...); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("the agent's environment is that of the Deployment in its manifest", func(t *testing.T) {
		manifest, err := new(registration.Manifests).Manifest(registration.ManifestInput{
			Image: "drover", Trust: v1.TrustSystem, Token: "t", Settings: protocol.Settings{Servers: []string{"https://hub.example.com"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		env, err := framework.DeploymentEnv(manifest)
		if err != nil || !slices.Contains(env, "DROVER_SERVER=https://hub.example.com") {
			t.Errorf("got %v, %v", env, err)
		}
		if _, err := framework.DeploymentEnv([]byte("kind: Secret\n")); err == nil {
			t.Error("a manifest without a Deployment was taken")
		}
	})
	t.Run("on simulated nodes, the manifest is applied without the Deployment, and with all else", func(t *testing.T) {
		manifest, err := new(registration.Manifests).Manifest(registration.ManifestInput{
			Image: "drover", Trust: v1.TrustSystem, Token: "t",
			Settings: protocol.Settings{Servers: []string{"https://hub.example.com"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := withoutDeployment(manifest)
		if err != nil || bytes.Contains(got, []byte("kind: Deployment\n")) {
			t.Errorf("got %s, %v, want no Deployment", got, err)
		}
		kinds := func(manifest []byte) int { return bytes.Count(manifest, []byte("\nkind: ")) }
		if want := kinds(manifest) - 1; kinds(got) != want || want < 5 {
			t.Errorf("it has %d objects, want %d", kinds(got), want)
		}
	})
	t.Run("the manager takes the configuration", func(t *testing.T) {
		content, err := managerConfig(simulatedNodes, 4711, "")
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := config.Parse(content)
		if err != nil || parsed.Server.Listen != "127.0.0.1:4711" || parsed.Server.URLs[0] != "https://127.0.0.1:4711" {
			t.Errorf("got %+v, %v", parsed, err)
		}
	})
	t.Run("users sign in at the address that a browser of this machine can open", func(t *testing.T) {
		for _, nodes := range []string{simulatedNodes, realNodes} {
			content, err := managerConfig(nodes, 4711, "")
			if err != nil {
				t.Fatal(err)
			}
			if parsed, err := config.Parse(content); err != nil || parsed.SignIn.Issuer != "https://127.0.0.1:4711" {
				t.Errorf("%s nodes: got %+v, %v", nodes, parsed.SignIn, err)
			}
		}
	})
	t.Run("the API server gets the documentation's configuration with the hub's URL and CA", func(t *testing.T) {
		source, err := d.readSources("docs/operations/hub-authentication.yaml")
		if err != nil {
			t.Fatal(err)
		}
		content, err := authenticationConfig(source, "https://127.0.0.1:4711", []byte("the CA\n"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"url: https://127.0.0.1:4711\n", "the CA\n", "the user has a reserved name"} {
			if !strings.Contains(string(content), want) {
				t.Errorf("the configuration lacks %q:\n%s", want, content)
			}
		}
		for name, damaged := range map[string]string{"no issuer": noIssuer, "another format": noIssuer + "more: x\n"} {
			if _, err := authenticationConfig([]byte(damaged), "", nil); err == nil {
				t.Errorf("a configuration with %s was taken", name)
			}
		}
	})
}
