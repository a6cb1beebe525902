// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policies checks continuously whether the admission policies that a component depends on are in force.
package policies

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	admission "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	manifests "github.com/drover-dev/drover/config"
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,verbs=list

// policiesEvery is the interval at which the manager checks its policies.
const policiesEvery = time.Minute

type policyState string

const (
	policyInForce policyState = "InForce"
	policyMissing policyState = "Missing"
	policyChanged policyState = "Changed"
	// policyUnknown means that the policies could not be listed.
	policyUnknown policyState = "Unknown"
)

// policy is an admission policy with one of its bindings. A policy without a binding has no effect.
type policy struct {
	admissionv1.ValidatingAdmissionPolicy
	binding admissionv1.ValidatingAdmissionPolicyBinding
}

// Watch checks continuously whether the hub's admission policies are in force. It never writes policies, because a
// compromised process must not be able to remove its own restrictions.
type Watch struct {
	wanted []policy
	from   Manifests
	list   func(context.Context) ([]policy, error) // returns one entry for each binding of each of the hub's policies
	log    logr.Logger
	states atomic.Pointer[map[string]policyState] // by name; nil before the first check
	unsure bool                                   // set if the first check found that policies were missing
}

// Manifests identifies the manifests that install a component's policies.
type Manifests struct {
	// Files are patterns for the files in config/ that contain the policies.
	Files []string
	// Policies is the manifest to apply if a policy is missing, and Rights is the manifest to apply if the policies
	// cannot be listed.
	Policies, Rights string
}

// New returns a Watch of the policies in the given manifests. It runs on every replica.
func New(from Manifests, client admission.AdmissionregistrationV1Interface, log logr.Logger) (*Watch, error) {
	wanted, err := readPolicies(manifests.Policies, from.Files)
	if err != nil {
		return nil, err
	}
	list := func(ctx context.Context) ([]policy, error) { return listPolicies(ctx, client) }
	return &Watch{wanted: wanted, from: from, log: log, list: list}, nil
}

// readPolicies returns the policies in the files that match at least one of the patterns.
func readPolicies(folder fs.FS, patterns []string) ([]policy, error) {
	var files []string
	for _, pattern := range patterns {
		matching, err := fs.Glob(folder, pattern)
		if err != nil {
			return nil, fmt.Errorf("list policies: %w", err)
		}
		if len(matching) == 0 {
			return nil, fmt.Errorf("list policies: no file matches %q", pattern)
		}
		files = append(files, matching...)
	}
	byName := map[string]policy{}
	for _, file := range files {
		text, err := fs.ReadFile(folder, file)
		if err != nil {
			return nil, fmt.Errorf("read policies: %w", err)
		}
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			var p policy
			if err := yaml.Unmarshal(document, &p.ValidatingAdmissionPolicy); err != nil {
				return nil, fmt.Errorf("read policies of %s: %w", file, err)
			}
			switch p.Kind {
			case "ValidatingAdmissionPolicy":
				p.binding = byName[p.Name].binding
				byName[p.Name] = p
			case "ValidatingAdmissionPolicyBinding":
				if err := yaml.Unmarshal(document, &p.binding); err != nil {
					return nil, fmt.Errorf("read policies of %s: %w", file, err)
				}
				name := p.binding.Spec.PolicyName
				byName[name] = policy{byName[name].ValidatingAdmissionPolicy, p.binding}
			}
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b policy) int { return strings.Compare(a.Name, b.Name) }), nil
}

// Start checks the policies until ctx is done, on every replica.
func (p *Watch) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, p.look, policiesEvery)
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Watch) NeedLeaderElection() bool { return false }

// look compares the policies on the hub with the required ones, and logs the changes since the last check.
func (p *Watch) look(ctx context.Context) {
	states := map[string]policyState{}
	found, err := p.list(ctx)
	for _, wanted := range p.wanted {
		states[wanted.Name] = policyUnknown
		if err == nil {
			states[wanted.Name] = wanted.stateIn(found)
		}
	}
	if ctx.Err() != nil {
		return
	}
	before := p.states.Swap(&states)
	if again := p.unsure; before == nil || again || !maps.Equal(*before, states) {
		p.unsure = false
		p.report(states, before == nil, err)
	}
}

// listPolicies returns one entry for each binding of each of the hub's policies. It omits policies without a binding,
// because they have no effect.
func listPolicies(ctx context.Context, client admission.AdmissionregistrationV1Interface) ([]policy, error) {
	specs, err := client.ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	bindings, err := client.ValidatingAdmissionPolicyBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list bindings of policies: %w", err)
	}
	byName := map[string]admissionv1.ValidatingAdmissionPolicy{}
	for _, spec := range specs.Items {
		byName[spec.Name] = spec
	}
	var all []policy
	for _, binding := range bindings.Items {
		if spec, ok := byName[binding.Spec.PolicyName]; ok {
			all = append(all, policy{spec, binding})
		}
	}
	return all, nil
}

// report logs which policies are not in force. At startup, it logs nothing if all of them are in force. A missing
// policy is logged as an error only if it is missing in both the first and the second check, because an installer may
// start a component shortly before it applies the policies.
func (p *Watch) report(states map[string]policyState, first bool, err error) {
	names := map[policyState][]string{}
	for _, wanted := range p.wanted {
		names[states[wanted.Name]] = append(names[states[wanted.Name]], wanted.Name)
	}
	switch {
	case err != nil:
		p.log.Error(err, "it is not known whether the hub's admission policies are in force: apply "+p.from.Rights+
			" of this version")
	case len(names[policyInForce]) < len(p.wanted) && first:
		p.unsure = true
		p.log.Info("admission policies of the hub are not in force yet: this becomes an error if it lasts for a minute",
			"missing", names[policyMissing], "changed", names[policyChanged])
	case len(names[policyInForce]) < len(p.wanted):
		p.log.Error(nil, "admission policies of the hub are not in force, so accounts can exceed their limits: apply "+
			p.from.Policies+" of this version", "missing", names[policyMissing],
			"changed", names[policyChanged])
	case !first:
		p.log.Info("all admission policies of the hub are in force again")
	}
}

// stateIn returns the state of the policy, given the policies found on a hub. Names are ignored, because an overlay may
// have added a prefix.
func (p *policy) stateIn(found []policy) policyState {
	state := policyMissing
	for i := range found {
		if found[i].same(p) {
			return policyInForce
		}
		if found[i].Name == p.Name {
			state = policyChanged
		}
	}
	return state
}

// same reports whether two policies deny the same requests.
func (p *policy) same(o *policy) bool {
	binding := p.binding.Spec
	binding.PolicyName = o.binding.Spec.PolicyName
	return equality.Semantic.DeepEqual(withDefaults(&p.Spec), withDefaults(&o.Spec)) &&
		equality.Semantic.DeepEqual(binding, o.binding.Spec)
}

// withDefaults returns a spec in which the API server's defaults are set.
func withDefaults(spec *admissionv1.ValidatingAdmissionPolicySpec) *admissionv1.ValidatingAdmissionPolicySpec {
	spec = spec.DeepCopy()
	if spec.FailurePolicy == nil {
		spec.FailurePolicy = new(admissionv1.Fail)
	}
	c := spec.MatchConstraints
	if c == nil {
		return spec
	}
	if c.MatchPolicy == nil {
		c.MatchPolicy = new(admissionv1.Equivalent)
	}
	if c.NamespaceSelector == nil {
		c.NamespaceSelector = &metav1.LabelSelector{}
	}
	if c.ObjectSelector == nil {
		c.ObjectSelector = &metav1.LabelSelector{}
	}
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{c.ResourceRules, c.ExcludeResourceRules} {
		for i := range rules {
			if rules[i].Scope == nil {
				rules[i].Scope = new(admissionv1.AllScopes)
			}
		}
	}
	return spec
}

var policiesDesc = prometheus.NewDesc("drover_policies",
	"Admission policies of the hub by state: InForce, Missing, Changed or Unknown. Every replica counts all.",
	[]string{"state"}, nil)

// Describe implements prometheus.Collector.
func (*Watch) Describe(out chan<- *prometheus.Desc) { out <- policiesDesc }

// Collect implements prometheus.Collector.
func (p *Watch) Collect(out chan<- prometheus.Metric) {
	states := p.states.Load()
	if states == nil {
		return
	}
	counts := map[policyState]int{}
	for _, state := range *states {
		counts[state]++
	}
	for _, state := range []policyState{policyInForce, policyMissing, policyChanged, policyUnknown} {
		out <- prometheus.MustNewConstMetric(policiesDesc, prometheus.GaugeValue, float64(counts[state]), string(state))
	}
}
