// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// rancherServer is an API server with Rancher's kinds and the objects of internal/rancher/testdata/server.yaml, which is a hub, too.
type rancherServer struct {
	*testkit.Env
	kubeconfig string
	kubectl    string
}

func newRancherServer(t *testing.T) *rancherServer {
	t.Helper()
	env := testkit.Start(t)
	if _, err := envtest.InstallCRDs(env.Config, envtest.CRDInstallOptions{
		Paths: []string{testkit.Path(t, "internal/rancher/testdata/crds")}, ErrorIfPathMissing: true, MaxTime: testkit.Patience * time.Minute}); err != nil {
		t.Fatal(err)
	}
	s := &rancherServer{Env: env, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	config := clientcmdapi.NewConfig()
	config.Clusters["rancher"] = &clientcmdapi.Cluster{Server: env.Config.Host, CertificateAuthorityData: env.Config.CAData}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: env.Config.CertData, ClientKeyData: env.Config.KeyData}
	config.Contexts["rancher-local"] = &clientcmdapi.Context{Cluster: "rancher", AuthInfo: "admin"}
	config.CurrentContext = "rancher-local"
	if err := clientcmd.WriteToFile(*config, s.kubeconfig); err != nil {
		t.Fatal(err)
	}
	assets, err := lab.Binaries(t.Context(), os.Stderr, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	s.kubectl = assets[lab.Kubectl]
	for _, name := range []string{"fleet-default", "system-upgrade", "c-m-2x7kq9wd", "c-4hq8t", "c-m-2x7kq9wd-p-web01", "p-web02", "p-def77"} {
		env.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	s.create(t, testkit.Path(t, "internal/rancher/testdata/server.yaml"))
	return s
}

// create creates the objects of a file in their order.
func (s *rancherServer) create(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, document := range bytes.Split(text, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			t.Fatalf("%s, document %d: %v", file, i, err)
		}
		// The API server learns of a kind a moment after its CRD is established.
		testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { return s.Client.Create(ctx, o) })
	}
}

// export runs the command and returns the exit code and what is printed.
func (s *rancherServer) export(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	var out, complaints strings.Builder
	code := run(t.Context(), append([]string{"--kubeconfig", s.kubeconfig, "rancher", "export"}, args...), &out, &complaints)
	return code, out.String(), complaints.String()
}

// apply runs "kubectl apply -k" and returns what it prints.
func (s *rancherServer) apply(t *testing.T, dir string, flags ...string) string {
	t.Helper()
	args := append([]string{"--kubeconfig", s.kubeconfig, "apply", "-k", dir}, flags...)
	out, err := exec.CommandContext(t.Context(), s.kubectl, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s *rancherServer) mustExport(t *testing.T, args ...string) string {
	t.Helper()
	code, out, complaints := s.export(t, args...)
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, complaints)
	}
	return out
}

// files of a folder, with their modes.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		info, infoErr := entry.Info()
		rel, relErr := filepath.Rel(dir, path)
		if err := errors.Join(err, infoErr, relErr); err != nil {
			return err
		}
		found[filepath.ToSlash(rel)] = fmt.Sprintf("%s\n%s", info.Mode(), content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func same(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, expected := want[name]; !expected {
			t.Errorf("%s is there", name)
		}
	}
}

func TestARancherServerIsExported(t *testing.T) {
	s := newRancherServer(t)
	for _, folder := range []string{"config/policy", "config/roles"} {
		s.apply(t, testkit.Path(t, folder), "--server-side")
	}
	s.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}})
	dir := filepath.Join(t.TempDir(), "fleet")
	summary := s.mustExport(t, dir, "-w", "team-a")
	if !strings.Contains(summary, "4 Cluster\n") || !strings.Contains(summary, "need a decision") {
		t.Errorf("the summary is %q", summary)
	}
	first := files(t, dir)

	t.Run("what the real API server gave is exported as what the tables have", func(t *testing.T) {
		want := files(t, testkit.Path(t, "internal/rancher/testdata/golden"))
		for name, got := range first {
			_, content, _ := strings.Cut(got, "\n")
			_, golden, found := strings.Cut(want[name], "\n")
			if name != sumsFile && (!found || content != golden) {
				t.Errorf("%s:\n%s\nwant:\n%s", name, content, golden)
			}
		}
		if len(first) != len(want)+1 {
			t.Errorf("%d files, want %d and %s", len(first), len(want), sumsFile)
		}
	})
	t.Run("a second export changes nothing", func(t *testing.T) {
		s.mustExport(t, dir, "-w", "team-a")
		same(t, files(t, dir), first)
	})
	t.Run("no value of a Secret and no variable of an agent is in it", func(t *testing.T) {
		for name, content := range first {
			if strings.Contains(content, "swordfish") || strings.Contains(content, "c3dvcmRmaXNo") {
				t.Errorf("%s has it:\n%s", name, content)
			}
		}
	})
	t.Run("the hub takes all of it, and applying it again changes nothing", func(t *testing.T) {
		s.apply(t, dir, "--server-side", "--dry-run=server")
		s.apply(t, dir)
		for line := range strings.Lines(s.apply(t, dir)) {
			if !strings.HasSuffix(line, " unchanged\n") {
				t.Error(line)
			}
		}
		var bindings v1.ProjectRoleTemplateBindingList
		if err := s.Client.List(t.Context(), &bindings, client.InNamespace("team-a")); err != nil || len(bindings.Items) != 3 {
			t.Errorf("%d bindings of projects, %v", len(bindings.Items), err)
		}
	})
}
