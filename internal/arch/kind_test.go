// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxPlaces is the maximum number of places that adding a kind can require to change.
const maxPlaces = 12

// place is a file or folder that must be changed manually to add a kind.
type place struct {
	// path is the path in docs/contributing.md.
	path string
	// file is the changed file, or empty if no program is built from it. It is copied from fixture, or changed with edits.
	file, fixture string
	edits         []edit
}

// edit inserts text after the first match of anchor.
type edit struct{ anchor, text string }

// places returns the places to change for the kind Greeting, which delivers a ConfigMap to members.
func places() []place {
	return []place{
		{path: "api/v1", file: "api/v1/greeting_types.go", fixture: "types.go.txt"},
		{path: "api/v1/groupversion.go", file: "api/v1/groupversion.go", edits: []edit{
			{`&Plan\{\}, &PlanList\{\},\n`, "&Greeting{}, &GreetingList{},\n"},
		}},
		{path: "PROJECT"},
		{path: "config/crd/kustomization.yaml"},
		{path: "internal/set/set.go", file: "internal/set/set.go", edits: []edit{
			{`Plan = "plan"\n`, "// Greeting has a ConfigMap.\nGreeting = \"greeting\"\n"},
		}},
		{path: "internal/kinds/kinds.go", file: "internal/kinds/kinds.go", edits: []edit{{`return \[\]Kind\{\n`, `{
			Name: "Greeting", Resource: "greetings", Object: &v1.Greeting{}, List: &v1.GreetingList{},
			Sets: []Set{{set.Greeting, withdrawn}},
		},
`}}},
		{path: "controllers", file: "controllers/greeting/controller.go", fixture: "controller.go.txt"},
		{path: "controllers/workspaces.go", file: "controllers/workspaces.go", edits: []edit{
			{
				`"github.com/drover-dev/drover/controllers/direct"\n`, `"github.com/drover-dev/drover/controllers/greeting"` + "\n",
			},
			{`w\.direct\(\), `, "w.greetings(), "},
			{`return wiring\.Controller\{Name: set\.Direct, .*\n\}\n`, `
func (w *workspaces) greetings() wiring.Controller {
	return wiring.Controller{
		Name: set.Greeting, Workers: 4,
		Reconciler: &greeting.Reconciler{
			Client: w.client, Recorder: w.recorder("drover-greeting"), Deliveries: w.deliveries,
		},
		Triggers: []wiring.Trigger{
			wiring.OnChange(&v1.Greeting{}), w.onAffecting(&v1.Cluster{}, index.ClusterTo[*v1.Greeting]),
			onOutcome(w.deliveries, 100*time.Millisecond, set.Greeting),
		},
	}
}
`},
		}},
		{path: "config/roles/workspace.yaml"},
		{path: "config/policy"},
		{path: "docs/spec"},
		{path: "docs/guide/subscribe.md"},
	}
}

// TestLong_AKindIsAddedInTheDocumentedPlaces adds a kind to a copy of the tree, in the places that docs/contributing.md
// lists, and builds the controllers.
func TestLong_AKindIsAddedInTheDocumentedPlaces(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| a kind that is delivered to members \| (.+) \|$`).FindStringSubmatch(
		readFile(t, "docs/contributing.md"),
	)
	if row == nil {
		t.Fatal("docs/contributing.md has no row for a kind that is delivered to members, want one that lists all places")
	}
	var documented, added []string
	for _, name := range regexp.MustCompile("`([A-Za-z0-9_./-]+)`").FindAllStringSubmatch(row[1], -1) {
		documented = append(documented, name[1])
	}
	for _, p := range places() {
		added = append(added, p.path)
	}
	slices.Sort(documented)
	slices.Sort(added)
	if !slices.Equal(documented, added) || len(added) > maxPlaces {
		t.Errorf(
			"docs/contributing.md lists the places %q\nand this test adds a kind in %q\nwant the same, and at most %d",
			documented, added, maxPlaces,
		)
	}
	overlay := overlayOf(t)
	run(t, "build", "-overlay", overlay, "./controllers/...")
	got := run(t, "run", "-overlay", overlay, "./hack/kind")
	for _, want := range []string{`page: export const kinds = ["greetings",`, "restored: {true false false}", "indexed by [prod]"} {
		if !strings.Contains(got, want) {
			t.Errorf("got the registry entry\n%s\nwant %q in it", got, want)
		}
	}
}

// overlayOf writes the changed files into a folder and returns the overlay file for the go command.
func overlayOf(t *testing.T) string {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	write := func(file string, content []byte) {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, content, 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root(t), file)] = to
	}
	fixture := func(name string) []byte { return []byte(readFile(t, "internal/arch/testdata/kind/"+name)) }
	for _, p := range places() {
		switch {
		case p.fixture != "":
			write(p.file, fixture(p.fixture))
		case p.file != "":
			write(p.file, []byte(p.edited(t)))
		}
	}
	write("hack/kind/main.go", fixture("main.go.txt"))
	file, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// edited returns the changed text of the file.
func (p place) edited(t *testing.T) string {
	t.Helper()
	text := readFile(t, p.file)
	for _, e := range p.edits {
		at := regexp.MustCompile(e.anchor).FindStringIndex(text)
		if at == nil {
			t.Fatalf("%s has no match of %s, after which this test adds the kind: correct the test, and the row in docs/contributing.md if the place "+
				"is another now", p.file, e.anchor)
		}
		text = text[:at[1]] + e.text + text[at[1]:]
	}
	return text
}

// run runs the go command in the module and returns its output.
func run(t *testing.T, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", arguments...)
	command.Dir = root(t)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return string(output)
}
