// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// call sends a request and returns the status code and the decoded response.
func call(t *testing.T, config *rest.Config, method, path, body string) (int, map[string]any) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer := map[string]any{}
	if err := json.Unmarshal(content, &answer); err != nil {
		t.Fatalf("%s %s: %s: %s", method, path, resp.Status, content)
	}
	return resp.StatusCode, answer
}

// pids are the process IDs of the plane's programs.
func pids(p *ControlPlane) []int {
	var found []int
	for _, program := range []string{Etcd, APIServer, ControllerManager} {
		if process := p.Process(program); process != nil {
			found = append(found, process.PID())
		}
	}
	return found
}

const keptConfigMap = `{"metadata":{"name":"kept"}}`

func createConfigMap(t *testing.T, config *rest.Config) {
	t.Helper()
	if code, answer := call(t, config, http.MethodPost, "/api/v1/namespaces/default/configmaps", keptConfigMap); code != http.StatusCreated {
		t.Fatalf("create a ConfigMap: %d %v, want 201", code, answer)
	}
}

func assertConfigMap(t *testing.T, config *rest.Config) {
	t.Helper()
	if code, answer := call(t, config, http.MethodGet, "/api/v1/namespaces/default/configmaps/kept", ""); code != http.StatusOK {
		t.Errorf("read the ConfigMap: %d %v, want 200", code, answer)
	}
}

func TestControlPlane(t *testing.T) {
	plane, err := Start(t.Context(), Options{
		Name: "hub", Progress: os.Stderr, ControllerManager: true,
		Users: []User{{Name: "alice", Groups: []string{"devs", "ops"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	running := pids(plane)
	if len(running) != 3 {
		t.Fatalf("%d programs run", len(running))
	}

	t.Run("it says the version that was built", func(t *testing.T) { testVersion(t, plane) })
	t.Run("the default ServiceAccount exists at once", func(t *testing.T) {
		code, answer := call(t, plane.RESTConfig(), http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "")
		if code != http.StatusOK {
			t.Errorf("read the ConfigMap: %d %v, want 200", code, answer)
		}
	})
	t.Run("a user is known by name and groups and has no rights", func(t *testing.T) { testUser(t, plane) })
	t.Run("strangers are refused by the API server and by etcd", func(t *testing.T) { testStrangers(t, plane) })
	t.Run("a killed API server comes back at the same address with the same data", func(t *testing.T) {
		createConfigMap(t, plane.RESTConfig())
		url := plane.URL()
		if err := plane.Process(APIServer).Kill(); err != nil {
			t.Fatal(err)
		}
		if err := plane.Restart(t.Context(), APIServer); err != nil {
			t.Fatal(err)
		}
		if plane.URL() != url {
			t.Errorf("it moved from %s to %s", url, plane.URL())
		}
		assertConfigMap(t, plane.RESTConfig())
	})
	t.Run("stopped, it leaves no process and no file", func(t *testing.T) {
		running = append(running, pids(plane)...)
		for range 2 {
			if err := plane.Stop(); err != nil {
				t.Fatal(err)
			}
		}
		if slices.ContainsFunc(running, alive) {
			t.Errorf("one of %v is alive", running)
		}
		if err := plane.Restart(t.Context(), Etcd); err == nil {
			t.Error("a stopped plane was restarted")
		}
		if exists(plane.Dir()) {
			t.Errorf("%s is still there", plane.Dir())
		}
	})
}

func testVersion(t *testing.T, plane *ControlPlane) {
	c, err := newCatalog()
	if err != nil {
		t.Fatal(err)
	}
	minor, _, _ := strings.Cut(strings.TrimSuffix(minorOf(c[APIServer].module.version), ".x"), "-")
	_, answer := call(t, plane.RESTConfig(), http.MethodGet, "/version", "")
	if version := fmt.Sprint(answer["gitVersion"]); !strings.HasPrefix(version, "v"+minor+".") {
		t.Errorf("got %s", version)
	}
}

func testUser(t *testing.T, plane *ControlPlane) {
	kubeconfig, err := plane.UserKubeconfig("alice")
	if err != nil {
		t.Fatal(err)
	}
	config, err := restConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	_, answer := call(t, config, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", "{}")
	got := fmt.Sprint(answer["status"])
	if !strings.Contains(got, "username:alice") || !strings.Contains(got, "devs ops") {
		t.Errorf("got %s", got)
	}
	if code, _ := call(t, config, http.MethodGet, "/api/v1/namespaces", ""); code != http.StatusForbidden {
		t.Errorf("listing namespaces: %d", code)
	}
	if _, err := plane.UserKubeconfig("mallory"); err == nil {
		t.Error("there is a kubeconfig for a user that is not in Options.Users")
	}
}

func testStrangers(t *testing.T, plane *ControlPlane) {
	anonymous := rest.AnonymousClientConfig(plane.RESTConfig())
	if code, _ := call(t, anonymous, http.MethodGet, "/api/v1/namespaces", ""); code != http.StatusForbidden {
		t.Errorf("anonymous: %d", code)
	}
	anonymous.BearerToken = "not-a-token-of-a-user"
	if code, _ := call(t, anonymous, http.MethodGet, "/api/v1/namespaces", ""); code != http.StatusUnauthorized {
		t.Errorf("wrong token: %d", code)
	}
	client, err := rest.HTTPClientFor(plane.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	if err := get(t.Context(), client, loopbackURL(plane.ports.etcd.port)+"/health"); err == nil {
		t.Error("etcd answers to a certificate of the cluster")
	}
}

func TestControlPlaneThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	_, err := Start(t.Context(), Options{
		Dir: dir, Progress: os.Stderr, ExtraArgs: map[string][]string{APIServer: {"--no-such-flag"}},
	})
	if err == nil {
		t.Fatal("it started")
	}
	for _, want := range []string{"kube-apiserver of lab", "exit status 1", "unknown flag: --no-such-flag"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if names, err := Running(filepath.Join(dir, "pids")); len(names) > 0 || err != nil {
		t.Errorf("still running: %v, %v", names, err)
	}
}

func detachedOptions(dir string) Options {
	return Options{Name: "member", Dir: dir, Detached: true}
}

// helperPlane starts a detached plane and prints its address.
func helperPlane(dir string) error {
	plane, err := Start(context.Background(), detachedOptions(dir))
	if err != nil {
		return err
	}
	if err := plane.WriteKubeconfig(filepath.Join(dir, "kubeconfig")); err != nil {
		return err
	}
	fmt.Println(plane.URL())
	return nil
}

func TestDetachedControlPlane(t *testing.T) {
	needLinux(t)
	dir := t.TempDir()
	pidDir := filepath.Join(dir, "pids")
	if _, err := Binaries(t.Context(), os.Stderr); err != nil { // the helper's output would not be seen
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = StopDetached(context.Background(), pidDir) })
	helper, url := startHelper(t, "plane-detached", dir)
	killHelper(helper)

	kubeconfig, err := os.ReadFile(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := restConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("it serves after its starter was killed", func(t *testing.T) { createConfigMap(t, config) })
	t.Run("it is not started twice in one folder", func(t *testing.T) {
		if _, err := Start(t.Context(), detachedOptions(dir)); !errors.Is(err, ErrRunning) {
			t.Fatalf("got %v", err)
		}
		assertConfigMap(t, config)
	})
	t.Run("stopped, it leaves no process", func(t *testing.T) {
		if err := StopDetached(t.Context(), pidDir); err != nil {
			t.Fatal(err)
		}
		if names, err := Running(pidDir); len(names) > 0 || err != nil {
			t.Errorf("still running: %v, %v", names, err)
		}
	})
	t.Run("started again, it has its address, its kubeconfig and its data", func(t *testing.T) {
		plane, err := Start(t.Context(), detachedOptions(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = plane.Stop() }()
		if plane.URL() != url {
			t.Errorf("it moved from %s to %s", url, plane.URL())
		}
		assertConfigMap(t, config)
	})
}

func TestOptions(t *testing.T) {
	for name, options := range map[string]Options{
		"a name that is no file name":  {Name: "../x"},
		"a detached plane in no place": {Detached: true},
		"a user without a name":        {Users: []User{{}}},
		"two users of one name":        {Users: []User{{Name: "a"}, {Name: "a"}}},
		"a token that can be guessed":  {Users: []User{{Name: "a", Token: "secret"}}},
	} {
		t.Run(name+" is refused", func(t *testing.T) {
			if plane, err := Start(t.Context(), options); err == nil {
				_ = plane.Stop()
				t.Error("it started")
			} else if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the token: %v", err)
			}
		})
	}
	t.Run("names and groups with commas and quotes survive in the token file", func(t *testing.T) {
		got, err := tokenFile([]User{{Name: `a "b"`, Token: "t", Groups: []string{"x", "y"}}})
		if want := "t,\"a \"\"b\"\"\",\"lab-a \"\"b\"\"\",\"x,y\"\n"; err != nil || string(got) != want {
			t.Errorf("got %q, %v", got, err)
		}
	})
}
