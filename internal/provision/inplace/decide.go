// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/untrusted"
)

// infrastructure is a DroverMachine, a DroverMachineTemplate, or an object from another infrastructure provider.
type infrastructure struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		InPlaceUpdate json.RawMessage `json:"inPlaceUpdate"`
		Template      struct {
			Spec struct {
				InPlaceUpdate json.RawMessage `json:"inPlaceUpdate"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

// change contains the current and the desired state of machines.
type change struct {
	kind             string
	current, desired infrastructure
	// from and to are the Kubernetes versions. before and after are the installers.
	from, to      string
	before, after json.RawMessage
	byKubeadm     bool
}

// is reports whether a bootstrap configuration belongs to the kubeadm provider and has the given kind.
func (b bootstrap) is(kind string) bool {
	group, _, _ := strings.Cut(b.APIVersion, "/")
	return group == clusterapi.GroupKubeadm && b.Kind == kind
}

func canUpdateMachine(q *request) response {
	c := change{
		kind: "DroverMachine", current: q.Current.InfrastructureMachine, desired: q.Desired.InfrastructureMachine,
		from: q.Current.Machine.Spec.Version, to: q.Desired.Machine.Spec.Version,
		before: q.Current.InfrastructureMachine.Spec.InPlaceUpdate, after: q.Desired.InfrastructureMachine.Spec.InPlaceUpdate,
		byKubeadm: q.Current.BootstrapConfig.is("KubeadmConfig") && q.Desired.BootstrapConfig.is("KubeadmConfig"),
	}
	if why := c.refused(); why != "" {
		return response{Status: success, Message: why}
	}
	return response{
		Status: success, MachinePatch: c.ofVersion("/spec/version"), InfrastructureMachinePatch: c.ofInstaller("/spec/inPlaceUpdate"),
		BootstrapConfigPatch: ofBootstrap(q.Current.BootstrapConfig, q.Desired.BootstrapConfig),
	}
}

func canUpdateMachineSet(q *request) response {
	c := change{
		kind: "DroverMachineTemplate", current: q.Current.InfrastructureMachineTemplate, desired: q.Desired.InfrastructureMachineTemplate,
		from: q.Current.MachineSet.Spec.Template.Spec.Version, to: q.Desired.MachineSet.Spec.Template.Spec.Version,
		before: q.Current.InfrastructureMachineTemplate.Spec.Template.Spec.InPlaceUpdate, after: q.Desired.InfrastructureMachineTemplate.Spec.Template.Spec.InPlaceUpdate,
		byKubeadm: q.Current.BootstrapConfigTemplate.is("KubeadmConfigTemplate") && q.Desired.BootstrapConfigTemplate.is("KubeadmConfigTemplate"),
	}
	if why := c.refused(); why != "" {
		return response{Status: success, Message: why}
	}
	return response{Status: success, MachineSetPatch: c.ofVersion("/spec/template/spec/version"), InfrastructureMachineTemplatePatch: c.ofInstaller("/spec/template/spec/inPlaceUpdate")}
}

// refused returns the reason why machines cannot be updated in place, or "" if they can. If there is a reason, Cluster
// API replaces the machines. It also replaces them if they differ in other fields, because only changes in the returned
// patch are made in place.
func (c change) refused() string {
	ours := infrav1.GroupVersion.String()
	switch {
	case c.current.APIVersion != ours || c.desired.APIVersion != ours || c.current.Kind != c.kind || c.desired.Kind != c.kind:
		return fmt.Sprintf("the machines do not have the kind %s of %s", c.kind, ours)
	case !c.byKubeadm:
		return "kubeadm does not set the machines up"
	case len(c.after) == 0 || string(c.after) == "null":
		return "the " + c.kind + " has no inPlaceUpdate"
	case c.from != c.to:
		return upgrade(c.from, c.to)
	}
	return ""
}

// upgrade returns the reason why kubeadm cannot upgrade from one Kubernetes version to another, or "" if it can.
func upgrade(from, to string) string {
	before, err := version.ParseSemantic(from)
	if err != nil {
		return fmt.Sprintf("%.64q is not a version of Kubernetes", from)
	}
	after, err := version.ParseSemantic(to)
	switch {
	case err != nil || !strings.HasPrefix(to, "v"):
		return fmt.Sprintf("%.64q is not a version of Kubernetes", to)
	case after.LessThan(before):
		return fmt.Sprintf("kubeadm does not downgrade from %s to %s", from, to)
	case after.Major() != before.Major() || after.Minor() > before.Minor()+1:
		return fmt.Sprintf("kubeadm upgrades only to the next minor version, and not from %s to %s", from, to)
	}
	return ""
}

func (c change) ofVersion(path string) *patch {
	if c.from == c.to {
		return nil
	}
	return set(path, c.to)
}

func (c change) ofInstaller(path string) *patch {
	if same(c.before, c.after) {
		return nil
	}
	return set(path, c.after)
}

// localMode is a feature gate that Cluster API sets for Kubernetes versions up to 1.35. Later versions do not support
// the gate. kubeadm reads the gate from the cluster, not from the machine.
const localMode = "ControlPlaneKubeletLocalMode"

// ofBootstrap returns a patch for differences between bootstrap configurations that do not affect existing control
// plane machines. Examples are settings that Cluster API itself changes with the version, and the phases that a machine
// skips when it joins. For the first machine, these are phases of kubeadm init. The patch is nil if there are no such
// differences.
func ofBootstrap(current, desired bootstrap) *patch {
	var operations []operation
	if cluster, changed := withGate(current.Spec.ClusterConfiguration, desired.Spec.ClusterConfiguration); changed {
		operations = append(operations, put("/spec/clusterConfiguration", cluster, len(cluster) == 0))
	}
	const field = "skipPhases"
	before, after := current.Spec.JoinConfiguration.get(field), desired.Spec.JoinConfiguration.get(field)
	if len(current.Spec.JoinConfiguration) > 0 && !same(before, after) {
		operations = append(operations, put("/spec/joinConfiguration/"+field, after, after == nil))
	}
	return asPatch(operations)
}

func (f fields) get(name string) json.RawMessage {
	if value := f[name]; string(value) != "null" {
		return value
	}
	return nil
}

// same reports whether two JSON values are equal except for white space.
func same(a, b json.RawMessage) bool {
	var first, second bytes.Buffer
	return len(a) == 0 && len(b) == 0 || json.Compact(&first, a) == nil && json.Compact(&second, b) == nil && bytes.Equal(first.Bytes(), second.Bytes())
}

// withGate returns a copy of cluster with the feature gate localMode from other, and reports whether the copy differs
// from cluster.
func withGate(cluster, other fields) (fields, bool) {
	const field = "featureGates"
	before, after := gatesOf(cluster.get(field)), gatesOf(other.get(field))
	if same(before[localMode], after[localMode]) {
		return cluster, false
	}
	gates, out := maps.Clone(before), maps.Clone(cluster)
	if gates == nil {
		gates = fields{}
	}
	if out == nil {
		out = fields{}
	}
	if value, there := after[localMode]; there {
		gates[localMode] = value
	} else {
		delete(gates, localMode)
	}
	if out[field] = marshal(gates); len(gates) == 0 {
		delete(out, field)
	}
	return out, true
}

// gatesOf parses feature gates. It returns no gates if their format is unexpected.
func gatesOf(raw json.RawMessage) fields {
	var gates fields
	if len(raw) == 0 || untrusted.JSON(raw, &gates, bounds()) != nil {
		return nil
	}
	return gates
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// put returns an operation that sets a field. If removed is set, the operation removes an existing field instead.
func put(path string, value any, removed bool) operation {
	if removed {
		return operation{Op: "remove", Path: path}
	}
	return operation{Op: "add", Path: path, Value: value}
}

func set(path string, value any) *patch { return asPatch([]operation{put(path, value, false)}) }

func asPatch(operations []operation) *patch {
	if len(operations) == 0 {
		return nil
	}
	return &patch{PatchType: "JSONPatch", Patch: marshal(operations)}
}

func marshal(value any) []byte {
	raw, err := json.Marshal(value)
	if err != nil { // strings and parsed JSON can always be encoded
		panic(err)
	}
	return raw
}
