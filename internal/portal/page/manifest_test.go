// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/test/chromium"
)

// annotated is a Cluster as the API server has it, with an annotation and a list in its spec.
func annotated(note string, list ...any) map[string]any {
	return map[string]any{"apiVersion": "cluster.drover.dev/v1", "kind": "Cluster",
		"metadata": map[string]any{"namespace": "team", "name": "c0000", "annotations": map[string]any{"a/" + note[:4]: note},
			"managedFields": []any{map[string]any{"manager": "kubectl"}}},
		"spec": map[string]any{"list": list}}
}

// showYAML opens the view of the Cluster as YAML.
func showYAML(t *testing.T, f *fleet, p *chromium.Page, object map[string]any) {
	t.Helper()
	f.on("GET /k8s/local/apis/cluster.drover.dev/v1/namespaces/team/clusters/c0000", always(object))
	p.Press("Escape") // closes the dialog with the previous object
	eventually(t, p, `document.querySelectorAll("dialog[open]").length`, 0)
	at(p, "#/clusters/team/c0000")
	activate(t, p, "main button", "Show as YAML")
	sees(t, p, "heading: c0000 as YAML")
}

// TestAnObjectIsCopiedAsItIs shows and copies objects with hostile and long text. A changed copy could be applied.
func TestAnObjectIsCopiedAsItIs(t *testing.T) {
	f, p := signedIn(t, 1)
	p.Evaluate(`navigator.clipboard.writeText = async (text) => { window.copied = text; }`, nil)
	for name, note := range map[string]string{
		"hidden characters": "<img src=x>\u202e\n- a: b\u200d\u0085\u2028\ufeff\u007f\u009f\U000e0041\\u202e\"⟨202E⟩",
		"a long text":       strings.Repeat("0123456789", 2048) + "\u202e",
		"a word of YAML":    "null", "a document": "---\n...\n",
	} {
		object := annotated(note, []any{}, map[string]any{}, nil, 1.5, 9007199254740991, "1", "")
		showYAML(t, f, p, object)
		activate(t, p, "dialog button", "Copy manifest")
		var shown, copied string
		p.Evaluate(`document.querySelector("dialog pre").textContent`, &shown)
		p.Evaluate(`window.copied`, &copied)
		if copied != shown || strings.ContainsAny(shown, "\u202e\u200d\u0085\u2028\ufeff\u007f\u009f\U000e0041") {
			t.Errorf("%s: copied %q, want the shown text %q without hidden characters", name, copied, shown)
		}
		var got any
		want := any(object)
		delete(object["metadata"].(map[string]any), "managedFields")
		raw, err := json.Marshal(want)
		if err == nil {
			err = json.Unmarshal(raw, &want)
		}
		if err == nil {
			err = yaml.Unmarshal([]byte(copied), &got)
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: copied %s (%v), want the object without managed fields", name, copied, err)
		}
		eventually(t, p, `document.querySelectorAll("dialog img").length`, 0)
	}
}

func TestAnObjectThatIsNotShownInFullIsNotCopied(t *testing.T) {
	f, p := signedIn(t, 1)
	for want, object := range map[string]map[string]any{
		"Too long to copy": annotated(strings.Repeat("0123456789", 7000)),
		"The object has a number that browsers round. Read it with kubectl.": annotated("note", []any{uint64(1<<53 + 1)}),
	} {
		showYAML(t, f, p, object)
		sees(t, p, "StaticText: "+want)
		eventually(t, p, `document.querySelectorAll("dialog [aria-label='Copy manifest']").length`, 0)
	}
}

func TestOnlyAUserWhoMayGetAnObjectSeesItAsYAML(t *testing.T) {
	f, p := signedIn(t, 1)
	at(p, "#/clusters/team/c0000")
	eventually(t, p, `document.querySelectorAll("[aria-label='Show as YAML']").length`, 1)
	f.mu.Lock()
	f.denied = map[string]bool{"get": true}
	f.mu.Unlock()
	signIn(t, p, f.url, "secret") // opens the page again
	sees(t, p, "heading: Overview")
	at(p, "#/clusters/team/c0000")
	sees(t, p, "heading: c0000", "button: Delete the cluster")
	eventually(t, p, `document.querySelectorAll("[aria-label='Show as YAML']").length`, 0)
}
