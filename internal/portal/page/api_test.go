// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// TestEachRefusalSaysWhatToDo answers requests with errors of the API server.
func TestEachRefusalSaysWhatToDo(t *testing.T) {
	f, p := signedIn(t, 0)
	clusters := schema.GroupResource{Group: v1.Group, Resource: "clusters"}
	kind := schema.GroupKind{Group: v1.Group, Kind: "Cluster"}
	applied := []metav1.StatusCause{{Type: metav1.CauseTypeFieldManagerConflict, Message: "x", Field: ".spec"}}
	const local, member = "/k8s/local/refused", "/k8s/clusters/team/c0000/refused"
	for name, tt := range map[string]struct {
		err        *apierrors.StatusError
		path, want string
	}{
		"a name that is taken": {apierrors.NewAlreadyExists(clusters, "web"), local,
			"Choose another name, or change the existing object."},
		"a change at the same time": {apierrors.NewConflict(clusters, "web", errors.New("changed")), local,
			"Someone else has changed it at the same time. Look at the current state and try again."},
		"a field of another tool": {apierrors.NewApplyConflict(applied, "conflict"), local,
			"Another tool manages the fields that the message names. Change them there, for example in its repository."},
		"a value that is not valid": {apierrors.NewInvalid(kind, "web", field.ErrorList{field.Required(field.NewPath("spec"),
			"")}), local, "The message says what is not accepted, and why. Correct it and try again."},
		"no right": {apierrors.NewForbidden(clusters, "web", errors.New("no")), local,
			"Ask an administrator for a role that allows it. “Why can’t I?” under Access explains who can grant it."},
		"no object": {apierrors.NewNotFound(clusters, "web"), local,
			"It may have been deleted in the meantime. Reload the page."},
		"no workspace": {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "nosuch"), local,
			"Choose an existing workspace. A workspace is a namespace of the hub."},
		"a member that is away": {apierrors.NewServiceUnavailable("away"), member,
			"The cluster or its agent does not answer as it should. Look at the cluster’s conditions, and try again later."},
		"a hub that is down": {apierrors.NewInternalError(errors.New("down")), local,
			"The hub, or its API server, does not answer as it should. Try again later."},
	} {
		status := tt.err.Status()
		f.on("POST "+tt.path, func(map[string]any) (int, any) { return int(status.Code), status })
		var got string
		p.Evaluate(fmt.Sprintf(`import("/ui/core/api.js").then(({ call }) => call("POST", %q))
			.then(() => "no error", (e) => e.message + "\n" + e.advice)`, tt.path), &got)
		if want := status.Message + "\n" + tt.want; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestTheNamesOfBindingsAreThoseOfThePlugin compares names with the table of kubectl drover grant.
func TestTheNamesOfBindingsAreThoseOfThePlugin(t *testing.T) {
	_, p := signedIn(t, 0)
	table, err := os.ReadFile(testkit.Path(t, "cmd/kubectl-drover/grants/testdata/names.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Case, Want string }
	if err := json.Unmarshal(table, &cases); err != nil || len(cases) == 0 {
		t.Fatalf("the table has %d cases (%v), want some", len(cases), err)
	}
	var names []string
	p.Evaluate(fmt.Sprintf(`import("/ui/core/access.js").then(({ bindingFor }) => Promise.all(%s.map((c) => bindingFor({
		workspace: "team", cluster: "", selector: "", project: "", until: "", ...c,
		where: c.project ? "project" : c.selector ? "selector" : "cluster" }))))
		.then((all) => all.map((binding) => binding.metadata.name))`, table), &names)
	for i, tt := range cases {
		if names[i] != tt.Want {
			t.Errorf("%s: got %s, want %s", tt.Case, names[i], tt.Want)
		}
	}
}
