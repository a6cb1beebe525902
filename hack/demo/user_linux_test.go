// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
)

// A user signs in at the address and with the password that "make demo" has printed.
type user struct {
	*reader
	name, password, hub string
	home                string // of the plugin's session
	ca                  []byte // of the hub
}

// user returns the user of that name.
func (r *reader) user(t *testing.T, printed, name string) *user {
	t.Helper()
	hub := regexp.MustCompile(`kubectl drover login (https://\S+)`).FindStringSubmatch(printed)
	password := regexp.MustCompile(`(?m)^  ` + name + ` +(\S{26}) `).FindStringSubmatch(printed)
	if hub == nil || password == nil {
		t.Fatalf("the demo prints no address or no password of %s:\n%s", name, printed)
	}
	ca, err := os.ReadFile(r.files.file("hub-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	return &user{reader: r, name: name, password: password[1], hub: hub[1], home: t.TempDir(), ca: ca}
}

// line is a command line of the user.
func (u *user) line(command string) string {
	return fmt.Sprintf("export HOME=%[1]s KUBECONFIG=%[1]s/config PATH=$PWD/.demo/bin:$PATH; %[2]s", u.home, command)
}

// signIn signs in with the plugin and a code, which the user types into the hub's page.
func (u *user) signIn(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	browser, err := framework.NewVisitor(u.hub, strings.TrimPrefix(u.hub, "https://"), u.ca)
	if err != nil {
		t.Fatal(err)
	}
	login := u.command(ctx, u.line("kubectl drover login "+u.hub+" --ca .demo/hub-ca.crt --device"))
	err = framework.LogIn(login, func(page, code string) error {
		return browser.Confirm(ctx, page, code, u.name, u.password)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := u.types(t, u.line("kubectl drover whoami")); !strings.HasPrefix(got, "local:"+u.name+"\n") {
		t.Errorf("the hub knows the user as %s", got)
	}
}

// page returns the objects that the hub's page receives for the user, as "kind namespace/name", without role templates.
func (u *user) page(t *testing.T) []string {
	t.Helper()
	var credential struct{ Status struct{ Token string } }
	raw := u.types(t, u.line("kubectl drover get-token --hub "+u.hub))
	if err := json.Unmarshal([]byte(raw), &credential); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(u.ca)
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
	conn, _, err := dialer.Dial("wss"+strings.TrimPrefix(u.hub, "https")+"/v1/subscribe",
		http.Header{"Authorization": {"Bearer " + credential.Status.Token}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for {
		var m struct {
			Type, Kind string
			Object     struct {
				Metadata struct{ Namespace, Name string }
			}
		}
		if err := conn.ReadJSON(&m); err != nil {
			t.Fatal(err)
		}
		switch {
		case m.Type == "BOOKMARK":
			return slices.Sorted(maps.Keys(seen))
		case m.Type == "CHANGED" && m.Kind != "roletemplates":
			seen[strings.TrimSuffix(m.Kind+" "+m.Object.Metadata.Namespace, " ")+"/"+m.Object.Metadata.Name] = true
		}
	}
}

// signsIn checks that both users can sign in, and that each sees exactly the expected objects.
func (r *reader) signsIn(t *testing.T, printed string) {
	team := []string{
		"clusters default/member", "plans default/os-update", "projectroletemplatebindings default/shop-dev",
		"projects default/shop",
	}
	for _, want := range []struct {
		user, clusters string
		page           []string
		can, cannot    []string // command lines, in the context of the member
	}{
		{
			user: "admin", clusters: "default/member\nplatform/hub\n",
			page: append([]string{"clusters platform/hub", "users/admin", "users/dev"}, team...),
			can: []string{
				"kubectl get nodes", "kubectl drover use --hub && kubectl get users.cluster.drover.dev",
				"kubectl drover use platform/hub && kubectl get clusters -A",
			},
		},
		{
			user: "dev", clusters: "default/member\n", page: team,
			can:    []string{"kubectl -n shop create configmap by-dev && kubectl -n shop delete configmap by-dev"},
			cannot: []string{"kubectl -n default get secrets", "kubectl drover use platform/hub"},
		},
	} {
		t.Run(want.user, func(t *testing.T) {
			u := r.user(t, printed, want.user)
			if info, err := os.Stat(r.files.password(u.name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the file of the password has the mode %v, %v", info.Mode(), err)
			}
			u.signIn(t)
			if got := u.types(t, u.line("kubectl drover clusters -o name")); got != want.clusters {
				t.Errorf("the Clusters are\n%s\nwant\n%s", got, want.clusters)
			}
			slices.Sort(want.page)
			if got := u.page(t); !slices.Equal(got, want.page) {
				t.Errorf("the page shows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want.page, "\n"))
			}
			const inMember = "kubectl drover use member && "
			for _, line := range want.can {
				u.types(t, u.line(inMember+line))
			}
			for _, line := range want.cannot {
				u.types(t, u.line(inMember+"true"))
				if out, err := u.tries(t.Context(), u.line(line)); err == nil {
					t.Errorf("%s: %s, want it refused", line, out)
				}
			}
		})
	}
}

// planWorks checks that the Plan is at work, with a pod that runs.
func (r *reader) planWorks(t *testing.T) {
	const (
		plan = ".demo/bin/kubectl --kubeconfig .demo/hub.kubeconfig get plan os-update " +
			`-o jsonpath='{.status.conditions[?(@.type=="Complete")].reason}'`
		pods = ".demo/bin/kubectl --kubeconfig .demo/member.kubeconfig -n drover-plans get pods " +
			"-o jsonpath='{.items[*].status.phase}'"
	)
	err := await(t.Context(), time.Minute, func(ctx context.Context) error {
		reason, err := r.tries(ctx, plan)
		if err != nil || reason != v1.ReasonApplying {
			return fmt.Errorf("the Plan is %s (%w), want it at work", reason, err)
		}
		phase, err := r.tries(ctx, pods)
		if err != nil || phase != "Running" {
			return fmt.Errorf("the pods of the Plan are %q (%w), want one that runs", phase, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// again checks that a second "make demo" changes nothing.
func (r *reader) again(t *testing.T, printed string) {
	state := func() string {
		return r.types(t, "cat .demo/pids/*.pid; .demo/bin/kubectl --kubeconfig .demo/hub.kubeconfig "+
			"get users.cluster.drover.dev,project,prtb,clusters,plan -A "+
			`-o jsonpath='{range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.generation}{"\n"}{end}'`)
	}
	before := state()
	out := r.types(t, "make demo")
	if after := state(); after != before {
		t.Errorf("before there was\n%s\nand now there is\n%s", before, after)
	}
	_, was, _ := strings.Cut(printed, "Sign in")
	if _, is, _ := strings.Cut(out, "Sign in"); is != was || was == "" {
		t.Errorf("the demo said\n%s\nand says\n%s", was, is)
	}
}

// entries returns all files of the sources.
func (r *reader) entries(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(r.files.root, func(path string, _ os.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTheDemoOnSimulatedNodes(t *testing.T) {
	r, printed := newReader(t), ""
	before := r.entries(t)
	for _, step := range []struct {
		name string
		test func(*testing.T)
	}{
		{"it comes up", func(t *testing.T) { printed = r.types(t, "make demo NODES=simulated") }},
		{"the Plan is at work", r.planWorks},
		{"both users sign in and see what they may", func(t *testing.T) { r.signsIn(t, printed) }},
		{"a second time changes nothing", func(t *testing.T) { r.again(t, printed) }},
		{"nothing is left after demo-down", r.removes},
	} {
		if !t.Run(step.name, step.test) {
			break
		}
	}
	if after := r.entries(t); !t.Failed() && !slices.Equal(after, before) {
		t.Errorf("the files were\n%s\nand are\n%s", before, after)
	}
}
