// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudconfig_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/provision/cloudconfig"
)

var instance = cloudconfig.Instance{ID: "team-a/rack1", Hostname: "rack1.example.com"}

func golden(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestParseBootstrapDataOfKubeadm reads data that Cluster API v1.14.2 created.
func TestParseBootstrapDataOfKubeadm(t *testing.T) {
	for name, want := range map[string]struct {
		last    string
		files   int
		keys    bool
		command string
	}{
		"init.yaml":               {"/run/kubeadm/kubeadm.yaml", 13, true, "kubeadm init --config /run/kubeadm/kubeadm.yaml --v 5 && echo success > /run/cluster-api/bootstrap-success.complete"},
		"join-control-plane.yaml": {"/run/kubeadm/kubeadm-join-config.yaml", 13, true, "kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml --v 5 && echo success > /run/cluster-api/bootstrap-success.complete"},
		"join.yaml":               {"/run/kubeadm/kubeadm-join-config.yaml", 5, false, "kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml --v 5 && echo success > /run/cluster-api/bootstrap-success.complete"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := cloudconfig.Parse(golden(t, name), instance)
			if err != nil {
				t.Fatal(err)
			}
			files := map[string]cloudconfig.File{}
			for _, f := range config.Files {
				files[f.Path] = f
			}
			if len(files) != want.files || len(config.Files) != want.files {
				t.Errorf("got %d files, want %d: %v", len(config.Files), want.files, files)
			}
			if f := files[want.last]; f.Mode != "0640" || !strings.Contains(string(f.Content), "value: drover://team-a/rack1\n") {
				t.Errorf("got %s with %q and mode %s, want the provider ID and 0640", want.last, f.Content, f.Mode)
			}
			for path, content := range map[string]string{"/etc/thing/a": "hello\n", "/etc/thing/b": "zipped\n", "/etc/thing/c": "plain\n  indented\n"} {
				if got := strings.TrimRight(string(files[path].Content), "\n") + "\n"; got != content {
					t.Errorf("%s is %q, want %q", path, got, content)
				}
			}
			if key := files["/etc/kubernetes/pki/ca.key"]; want.keys && (key.Mode != "0600" || !bytes.Contains(key.Content, []byte("EC PRIVATE KEY"))) {
				t.Errorf("got the CA's key %q with mode %s, want it whole and private", key.Content, key.Mode)
			}
			wanted := []string{`echo "before" 'it'`, `hostnamectl set-hostname "rack1.example.com"`, want.command, "echo after"}
			if strings.Join(config.Commands, "\n") != strings.Join(wanted, "\n") {
				t.Errorf("got the commands %q, want %q", config.Commands, wanted)
			}
		})
	}
	t.Run("settings for new machines are refused by name", func(t *testing.T) {
		if _, err := cloudconfig.Parse(golden(t, "refused.yaml"), instance); err == nil || !strings.Contains(err.Error(), "bootCommands") {
			t.Errorf("got %v, want the name of the setting", err)
		}
	})
}

// TestParseBootstrapDataOfRKE2AndK3s reads data of the form that the templates of these providers have.
func TestParseBootstrapDataOfRKE2AndK3s(t *testing.T) {
	const done = "/run/cluster-api/bootstrap-success.complete"
	for name, want := range map[string][]string{
		"rke2": {`echo "before" 'it'`, "curl -sfL https://get.rke2.io | INSTALL_RKE2_VERSION=v1.35.3+rke2r1 sh -s - server", "systemctl mask rke2-agent.service || true",
			"systemctl enable rke2-server.service", "systemctl start rke2-server.service", "mkdir -p /run/cluster-api", "echo success > " + done, "echo after"},
		"k3s": {`echo "before" 'it'`, "curl -sfL https://get.k3s.io | INSTALL_K3S_VERSION=v1.35.3+k3s1 sh -s - server  && mkdir -p /run/cluster-api && echo success > " + done, "echo after"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := cloudconfig.Parse(golden(t, name+"-init.yaml"), instance)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Join(config.Commands, "\n") != strings.Join(want, "\n") {
				t.Errorf("got the commands %q, want %q", config.Commands, want)
			}
			files := map[string]cloudconfig.File{}
			for _, f := range config.Files {
				files[f.Path] = f
			}
			if f := files["/etc/rancher/"+name+"/config.yaml"]; f.Mode != "0640" || !strings.Contains(string(f.Content), "- provider-id=drover://team-a/rack1\n") {
				t.Errorf("config.yaml is %q of mode %s, want the provider ID and 0640", f.Content, f.Mode)
			}
			if key := files["/var/lib/rancher/"+name+"/server/tls/server-ca.key"]; key.Mode != "0600" || !bytes.Contains(key.Content, []byte("EC PRIVATE KEY")) {
				t.Errorf("the CA's key is %q of mode %s", key.Content, key.Mode)
			}
			if len(files) != 4 {
				t.Errorf("got %d files, want 4", len(files))
			}
		})
	}
}

func TestRefusalsNameTheProblemWithoutQuotingContent(t *testing.T) {
	bomb := &bytes.Buffer{}
	w := gzip.NewWriter(bomb)
	_, _ = w.Write(make([]byte, 8<<20))
	_ = w.Close()
	big := base64.StdEncoding.EncodeToString(bomb.Bytes())
	for name, c := range map[string]struct{ in, want string }{
		"a script":                        {"#!/bin/sh\necho hush\n", "#cloud-config"},
		"nothing":                         {"", "#cloud-config"},
		"no YAML":                         {"#cloud-config\n\thush: [", "cannot be read as YAML"},
		"a key twice":                     {"#cloud-config\nruncmd: [hush]\nruncmd: [hush]\n", "cannot be read as YAML"},
		"an alias":                        {"#cloud-config\nwrite_files: [{path: /a, content: &hush x}]\nruncmd: [*hush]\n", "alias"},
		"too many commands":               {"#cloud-config\nruncmd: [" + strings.Repeat("hush,", 5000) + "]\n", "too many values"},
		"too many variables":              {"## template: jinja\n#cloud-config\nruncmd: ['" + strings.Repeat("{{hostname}}", 1000) + "']\n", "variables"},
		"users":                           {"#cloud-config\nusers: [{name: hush}]\n", "users"},
		"mounts":                          {"#cloud-config\nmounts: [[hush]]\n", "mounts"},
		"an unknown key":                  {"#cloud-config\npackages: [hush]\n", `"packages"`},
		"an unknown field of a file":      {"#cloud-config\nwrite_files: [{path: /a, source: {uri: hush}}]\n", "write_files"},
		"append":                          {"#cloud-config\nwrite_files: [{path: /a, content: hush, append: true}]\n", "write_files[0]: append"},
		"an owner by name":                {"#cloud-config\nwrite_files: [{path: /a, content: hush, owner: 'etcd:etcd'}]\n", "owner"},
		"permissions without quotes":      {"#cloud-config\nwrite_files: [{path: /a, content: hush, permissions: 0640}]\n", "quotes"},
		"permissions with setuid":         {"#cloud-config\nwrite_files: [{path: /a, content: hush, permissions: '4755'}]\n", "0777"},
		"another encoding":                {"#cloud-config\nwrite_files: [{path: /a, content: hush, encoding: zstd}]\n", "encoding"},
		"no base64":                       {"#cloud-config\nwrite_files: [{path: /a, content: '!hush', encoding: b64}]\n", "not base64"},
		"no gzip":                         {"#cloud-config\nwrite_files: [{path: /a, content: aHVzaA==, encoding: gz+b64}]\n", "not gzip"},
		"a file that unpacks to too much": {"#cloud-config\nwrite_files: [{path: /a, content: " + big + ", encoding: gzip+base64}]\n", "more than 1048576 bytes"},
		"a command that is a map":         {"#cloud-config\nruncmd: [{hush: x}]\n", "runcmd[0]"},
		"an unknown variable":             {"## template: jinja\n#cloud-config\nruncmd: ['{{ ds.meta_data.region }}']\n", "ds.meta_data.region"},
		"a filter of Jinja":               {"## template: jinja\n#cloud-config\nruncmd: ['{{ ds.meta_data.local_hostname | upper }}']\n", "Jinja"},
		"a statement of Jinja":            {"## template: jinja\n#cloud-config\nruncmd: ['{% if x %}']\n", "Jinja"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cloudconfig.Parse([]byte(c.in), instance)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hush") {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// CVE-2025-59823: a value from a tenant becomes code.
func TestTemplateAcceptsOnlyPlainWordsAsValues(t *testing.T) {
	text := []byte("## template: jinja\n#cloud-config\nruncmd: ['hostname {{ local_hostname }}']\n")
	for _, hostname := range []string{"", "a b", "x'; rm -rf /", "a\nb", "$(id)", "{{ x }}", strings.Repeat("a", 300)} {
		if config, err := cloudconfig.Parse(text, cloudconfig.Instance{Hostname: hostname}); err == nil {
			t.Errorf("the hostname %q became %q", hostname, config.Commands)
		}
	}
	plain := []byte("#cloud-config\nruncmd: ['docker ps --format {{ .Names }}']\n")
	if config, err := cloudconfig.Parse(plain, instance); err != nil || config.Commands[0] != "docker ps --format {{ .Names }}" {
		t.Errorf("got %+v, %v, want text that is not a template to stay as it is", config, err)
	}
}

func TestLastFileWithAPathWins(t *testing.T) {
	config, err := cloudconfig.Parse([]byte("#cloud-config\nwrite_files: [{path: /a, content: one}, {path: /b, content: x, owner: '7:8'}, {path: /a, content: two, permissions: '600'}]\nruncmd: [[echo, \"it's\"], ls]\n"), instance)
	if err != nil || len(config.Files) != 2 || config.Files[1].Path != "/a" || string(config.Files[1].Content) != "two" || config.Files[1].Mode != "0600" || config.Files[0].UID != 7 || config.Files[0].GID != 8 || config.Files[0].Mode != "0644" {
		t.Errorf("%+v, %v", config, err)
	}
	if got := strings.Join(config.Commands, ";"); got != `'echo' 'it'\''s';ls` {
		t.Errorf("got the commands %s, want them quoted", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"init.yaml", "join.yaml", "refused.yaml"} {
		f.Add(golden(f, name))
	}
	f.Add([]byte("#cloud-config\nwrite_files: [{path: /a, content: &x [*x], encoding: gz+b64}]\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := cloudconfig.Parse(raw, instance)
		if err != nil {
			return
		}
		total, seen := 0, map[string]bool{}
		for _, file := range config.Files {
			total += len(file.Content)
			if seen[file.Path] || len(file.Mode) != 4 || file.UID < 0 || file.GID < 0 {
				t.Errorf("file %q of mode %q, owner %d:%d", file.Path, file.Mode, file.UID, file.GID)
			}
			seen[file.Path] = true
		}
		if total > 1<<20 {
			t.Errorf("got %d bytes of files, want no more than the limit", total)
		}
	})
}
