// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// kind identifies a kind, whatever its version.
type kind struct{ group, name string }

// ref identifies an object, whatever the version of its kind.
type ref struct {
	kind
	namespace, object string
}

// String returns the object's name in the form that is used in set states.
func (r ref) String() string {
	if r.namespace == "" {
		return r.name + " " + r.object
	}
	return r.name + " " + r.namespace + "/" + r.object
}

// place returns the destination of a write in the format that agent/apply uses.
func (r ref) place() string {
	switch {
	case r.kind == kind{"", "Namespace"}:
		return "namespace " + r.object
	case r.namespace != "":
		return "namespace " + r.namespace
	}
	return r.String()
}

func (r ref) secret() bool { return r.kind == kind{"", "Secret"} }

func (r ref) definition() bool {
	return r.kind == kind{"apiextensions.k8s.io", "CustomResourceDefinition"}
}

func refOf(apiVersion, kindName, namespace, name string) ref {
	return ref{kind{baseline.Group(apiVersion), kindName}, namespace, name}
}

// wanted describes an object that the Baseline contains. It does not hold the object itself, because a decoded object
// takes ten times as much memory as its JSON.
type wanted struct {
	ref
	apiVersion string
	at         int    // index in the content
	digest     string // digest of the object that is applied
	problem    *protocol.SetObject
}

func (w wanted) stage() int { return baseline.Stage(w.apiVersion, w.name) }

// digestLength is the number of hexadecimal digits in a digest.
const digestLength = 16

// prepare reads the objects of a Baseline one at a time. If an object cannot be applied, its problem field is set.
func prepare(content *set.BaselineContent, values map[string]string) []wanted {
	all := make([]wanted, 0, len(content.Objects))
	seen := make(map[ref]bool, len(content.Objects))
	for i := range content.Objects {
		w := wanted{at: i}
		o, phase, reason := compose(content, i, values)
		if o != nil {
			w.apiVersion = o.GetAPIVersion()
			w.ref = refOf(w.apiVersion, o.GetKind(), o.GetNamespace(), o.GetName())
		}
		if reason == "" && seen[w.ref] {
			phase, reason = protocol.SetFailed, "the Baseline contains it twice: remove one of the two"
		}
		if reason == "" {
			seen[w.ref] = true
			body, err := json.Marshal(o)
			if err != nil {
				phase, reason = protocol.SetFailed, "it cannot be encoded"
			}
			sum := sha256.Sum256(body)
			w.digest = hex.EncodeToString(sum[:])[:digestLength]
		}
		if reason != "" {
			w.problem = &protocol.SetObject{Object: w.String(), Phase: phase, Message: reason}
		}
		all = append(all, w)
	}
	return all
}

// compose returns an object in the form in which it is applied, or the reason why it cannot be applied.
func compose(content *set.BaselineContent, at int, values map[string]string) (
	o *unstructured.Unstructured, phase protocol.SetPhase, reason string,
) {
	raw := content.Objects[at]
	o, err := baseline.Decode(raw)
	if err != nil {
		return nil, protocol.SetFailed, err.Error()
	}
	if baseline.Refers(raw) {
		if values == nil {
			return o, protocol.SetPending, "it waits for the values of the Cluster"
		}
		if err := baseline.Substitute(o.Object, values); err != nil {
			return o, protocol.SetFailed, err.Error()
		}
	}
	if reason := baseline.Refuse(o); reason != "" {
		return o, protocol.SetFailed, reason
	}
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1.LabelBaseline] = content.Name
	o.SetLabels(labels)
	return o, "", ""
}
