// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
)

// evil is what a member may put into a reason, a message or the name of a binding: it sets the title, clears the screen, moves the cursor,
// reverses what follows, and adds a line of its own.
const evil = "\x1b]0;x\a\x1b[2J\r\u202e\u009b1A\x9b\nYes: User mallory may do all"

// obeyed are the characters that a terminal obeys, or that change how others look.
const obeyed = "\x1b\a\r\u202e\u009b\x7f"

// CVE-2021-25313, CVE-2021-25743: what a member says is shown to people who may do more than it.
func TestAnswersPrintNoControlCharacters(t *testing.T) {
	who := principal{Kind: v1.SubjectUser, Name: "x" + evil}
	ref := access.Reference{Kind: access.KindClusterBinding, Namespace: "team-a", Name: "b"}
	chain := access.Chain{Binding: ref, Subject: v1.Subject{Kind: v1.SubjectUser, Name: evil}, Templates: []string{evil}, Object: access.Reference{Kind: "ClusterRoleBinding", Name: evil}, Role: evil}
	ready := metav1.Condition{Status: metav1.ConditionFalse, Reason: evil, Message: evil}
	f := findings{
		who: who, hub: &gathered{ready: map[access.Reference]metav1.Condition{ref: ready}}, workspace: "team-a", cluster: "prod",
		answer:    access.Explanation{Decision: access.Granted, Chains: []access.Chain{chain}, Missing: []access.Missing{{Binding: ref, RoleTemplate: evil, Subject: chain.Subject, Lack: access.LackRole, Err: errors.New(evil)}}},
		delivered: []delivered{{Binding: absent, Role: unread, refusals: []error{errors.New(evil)}}},
		review:    &authorizationv1.SubjectAccessReviewStatus{Reason: evil}, remarks: []string{evil},
	}
	h := holders{asked: true, Remarks: []string{evil}, Holders: []holder{{Subject: rbacv1.Subject{Kind: evil, Name: evil}, By: access.Reference{Kind: "RoleBinding", Name: evil}, Role: evil, Origin: originMember}}}
	for name, answer := range map[string]struct {
		value any
		text  func() string
	}{"why": {conclude(f), conclude(f).text}, "who-can": {h, h.text}} {
		for _, format := range []string{outputText, outputJSON, outputYAML} {
			out := &bytes.Buffer{}
			o := &options{output: format}
			if err := o.print(terminal{out}, answer.value, answer.text); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); strings.ContainsAny(got, obeyed) || !strings.Contains(got, "mallory") {
				t.Errorf("%s -o %s: %q", name, format, got)
			}
			if format == outputText && strings.Contains(out.String(), "\nYes: User mallory") {
				t.Errorf("%s: a member adds a line: %s", name, out)
			}
			var same any
			if err := json.Unmarshal(out.Bytes(), &same); format == outputJSON && err != nil {
				t.Errorf("%s: %v: %s", name, err, out)
			}
		}
	}
}

func TestErrorsPrintNoControlCharacters(t *testing.T) {
	var out, complaints bytes.Buffer
	code := run(t.Context(), []string{"why", "x", "get", "pods", "--cluster", "c", "-o", evil}, &out, &complaints)
	if got := complaints.String(); code != exitError || strings.ContainsAny(got, obeyed) || strings.Contains(got, "\nYes") {
		t.Errorf("exit code %d: %q, want an error without control characters and without a line of its own", code, got)
	}
}

func TestWhatIsNotPrintedIsWrittenAsJSONHasIt(t *testing.T) {
	for text, want := range map[string]string{
		"käse → └─ 😀\tx\n": "käse → └─ 😀\tx\n",
		"\x1b[31m":         `\u001b[31m`,
		"\u202e\u009b\x9b": `\u202e\u009b\u009b`,
		"\U000e0041":       `\udb40\udc41`,
	} {
		if got := visible(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestKubectlsNameForTheCompleterCompletes(t *testing.T) {
	for name, want := range map[string]string{"kubectl-drover": "plan", "/usr/bin/kubectl_complete-drover": "__complete plan", `kubectl_complete-drover.exe`: "__complete plan"} {
		if got := strings.Join(argumentsOf([]string{name, "plan"}), " "); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestErrorsSayWhatToGive(t *testing.T) {
	config := clientcmdapi.NewConfig()
	config.Clusters["away"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["away"] = &clientcmdapi.Context{Cluster: "away"}
	config.CurrentContext = "away"
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	config.Clusters["other"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["other"] = &clientcmdapi.Context{Cluster: "other"}
	away, empty := filepath.Join(t.TempDir(), "away"), filepath.Join(t.TempDir(), "empty")
	if err := errors.Join(clientcmd.WriteToFile(*config, away), os.WriteFile(empty, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"why x get pods --clustr y":                     `error: unknown flag: --clustr: see "kubectl drover why --help"`,
		"plan preview -f x":                             `error: unknown shorthand flag: 'f' in -f: see "kubectl drover plan preview --help"`,
		"plan watch x --kubeconfig " + empty:            "it names no cluster: give the hub's with --kubeconfig or KUBECONFIG",
		"uninstall --kubeconfig " + empty:               "it names no cluster: give the member's with --kubeconfig or KUBECONFIG",
		"uninstall --context nope --kubeconfig " + away: "name the member's with --kubeconfig or --context",

		"plan preview nosuch --kubeconfig " + away:                          "error: https://127.0.0.1:1 was not reached: dial tcp 127.0.0.1:1: connect: connection refused: check the server in",
		"who-can get pods --cluster c --kubeconfig " + away:                 "error: https://127.0.0.1:1 was not reached: dial tcp 127.0.0.1:1: connect: connection refused: check the server in",
		"uninstall --kubeconfig " + away:                                    "error: https://127.0.0.1:1 was not reached: dial tcp 127.0.0.1:1: connect: connection refused: check the server in",
		"who-can get pods --cluster c --context other --kubeconfig " + away: "check the certificate-authority-data of that server in the kubeconfig",
	} {
		var out strings.Builder
		if code := run(t.Context(), strings.Fields(line), &out, &out); code != exitError || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %d: %s, want an error with other text", line, code, out.String())
		}
	}
}

func TestUninstallPrintsEachNameOnOneLine(t *testing.T) {
	var out strings.Builder
	u := &uninstaller{out: terminal{&out}, said: map[string]bool{}}
	u.say(removal{kind: "ClusterRoleBinding", name: "x" + evil}.String() + " deleted")
	if said := out.String(); strings.Count(said, "\n") != 1 || strings.ContainsAny(said, obeyed) {
		t.Errorf("the warning is %q, want one line without control characters", said)
	}
}
