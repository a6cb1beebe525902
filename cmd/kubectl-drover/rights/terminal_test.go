// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
)

// evil is a text that a member may use as a reason, a message or the name of a binding. It sets the title, clears the
// screen, moves the cursor, reverses the text after it, and adds a line.
const evil = "\x1b]0;x\a\x1b[2J\r\u202e\u009b1A\x9b\nYes: User mallory may do all"

// obeyed has the characters that control a terminal or change how other characters look.
const obeyed = "\x1b\a\r\u202e\u009b\x7f"

// CVE-2021-25313, CVE-2021-25743: text from a member is shown to users with more rights.
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
		for _, format := range []string{cli.OutputText, cli.OutputJSON, cli.OutputYAML} {
			out := &bytes.Buffer{}
			o := &cli.Options{Output: format}
			if err := o.Print(cli.Terminal{Out: out}, answer.value, answer.text); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); strings.ContainsAny(got, obeyed) || !strings.Contains(got, "mallory") {
				t.Errorf("%s -o %s: %q", name, format, got)
			}
			if format == cli.OutputText && strings.Contains(out.String(), "\nYes: User mallory") {
				t.Errorf("%s: a member adds a line: %s", name, out)
			}
			var same any
			if err := json.Unmarshal(out.Bytes(), &same); format == cli.OutputJSON && err != nil {
				t.Errorf("%s: %v: %s", name, err, out)
			}
		}
	}
}

func TestErrorsPrintNoControlCharacters(t *testing.T) {
	var out, complaints bytes.Buffer
	code := run(t.Context(), []string{"why", "x", "get", "pods", "--cluster", "c", "-o", evil}, &out, &complaints)
	if got := complaints.String(); code != cli.ExitError || strings.ContainsAny(got, obeyed) || strings.Contains(got, "\nYes") {
		t.Errorf("exit code %d: %q, want an error without control characters and without a line of its own", code, got)
	}
}
