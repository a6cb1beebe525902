// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	manifests "github.com/drover-dev/drover/config"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func readAllPolicies(t *testing.T) []policy {
	t.Helper()
	all, err := readPolicies(manifests.Policies, []string{"policy/*.yaml"})
	if err != nil || len(all) < 20 {
		t.Fatalf("read %d policies, %v, want all of config/policy", len(all), err)
	}
	return all
}

// storedPolicies returns the policies of config/policy as an API server stores them.
func storedPolicies(t *testing.T) []policy {
	t.Helper()
	env := testkit.Shared(t)
	all := readAllPolicies(t)
	for i := range all {
		for _, o := range []client.Object{&all[i].ValidatingAdmissionPolicy, &all[i].binding} {
			if err := env.Client.Create(t.Context(), o, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

func TestStateOfAPolicy(t *testing.T) {
	t.Parallel()
	stored := storedPolicies(t)
	for _, p := range readAllPolicies(t) {
		if state := p.stateIn(stored); state != policyInForce {
			t.Errorf("%s is %s after config/policy was applied, want InForce", p.Name, state)
		}
	}
	const name = "drover-cluster-deletion"
	for what, tt := range map[string]struct {
		change func(*policy)
		want   policyState
	}{
		"another name, as an overlay with a prefix gives": {func(p *policy) {
			p.Name, p.binding.Name, p.binding.Spec.PolicyName = "my-"+p.Name, "my-"+p.Name, "my-"+p.Name
		}, policyInForce},
		"labels":        {func(p *policy) { p.Labels = map[string]string{"a": "b"} }, policyInForce},
		"an expression": {func(p *policy) { p.Spec.Validations[0].Expression = "true" }, policyChanged},
		"an exemption": {func(p *policy) {
			p.Spec.MatchConditions = append(p.Spec.MatchConditions, admissionv1.MatchCondition{Name: "x", Expression: "false"})
		}, policyChanged},
		"open if it fails": {func(p *policy) { p.Spec.FailurePolicy = new(admissionv1.Ignore) }, policyChanged},
		"a rule that is gone": {func(p *policy) {
			p.Spec.MatchConstraints.ResourceRules[0].Operations = []admissionv1.OperationType{"CREATE"}
		}, policyChanged},
		"a rule that is left out": {
			func(p *policy) { p.Spec.MatchConstraints.ExcludeResourceRules = p.Spec.MatchConstraints.ResourceRules },
			policyChanged,
		},
		"a binding that only warns": {
			func(p *policy) { p.binding.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Warn} },
			policyChanged,
		},
		"a binding for a few namespaces": {func(p *policy) {
			p.binding.Spec.MatchResources = &admissionv1.MatchResources{ResourceRules: p.Spec.MatchConstraints.ResourceRules}
		}, policyChanged},
		"nothing": {func(p *policy) { *p = policy{} }, policyMissing},
	} {
		t.Run(what, func(t *testing.T) {
			have := storedPolicies(t)
			for i := range have {
				if have[i].Name == name {
					tt.change(&have[i])
				}
			}
			for _, p := range readAllPolicies(t) {
				if state := p.stateIn(have); p.Name == name && state != tt.want || p.Name != name && state != policyInForce {
					t.Errorf("%s is %s, want %s for %s, and the others in force", p.Name, state, tt.want, name)
				}
			}
		})
	}
}

// Missing policies appear in a metric, and once in the log.
func TestMissingPoliciesAreReported(t *testing.T) {
	all := readAllPolicies(t)
	var logged []string
	var have []policy
	var failure error
	p := &Watch{wanted: all, list: func(context.Context) ([]policy, error) { return have, failure },
		log: funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})}
	registry := prometheus.NewRegistry()
	registry.MustRegister(p)
	if got := testkit.Scrape(t, registry); got != "" {
		t.Errorf("before the first look: %s", got)
	}
	changed := all[1]
	changed.binding.Spec.ValidationActions = nil
	for _, step := range []struct {
		have    []policy
		failure error
		metric  string
		log     string
	}{
		{all, nil, "drover_policies state=Missing 0", ""},
		{append([]policy{changed}, all[2:]...), nil, "drover_policies state=Missing 1", all[0].Name},
		{append([]policy{changed}, all[2:]...), nil, "drover_policies state=Changed 1", ""},
		{nil, errors.New("forbidden"), "drover_policies state=InForce 0", "forbidden"},
		{all, nil, "drover_policies state=Unknown 0", "in force again"},
	} {
		logged, have, failure = nil, step.have, step.failure
		p.look(t.Context())
		if got := testkit.Scrape(t, registry); !strings.Contains(got, step.metric+"\n") {
			t.Errorf("%q is not in\n%s", step.metric, got)
		}
		if got := strings.Join(logged, "\n"); step.log == "" && got != "" || !strings.Contains(got, step.log) ||
			len(logged) > 1 {
			t.Errorf("logged %q, want %q", got, step.log)
		}
	}
}

// An installer may apply the policies shortly after the Deployment.
func TestPoliciesMissingAtTheStartAreAnErrorOnlyIfTheyStayMissing(t *testing.T) {
	all := readAllPolicies(t)
	for name, tt := range map[string]struct {
		second []policy
		want   []string
	}{
		"they are there at the second look": {all, []string{"not in force yet", "all admission policies of the hub are in force again"}},
		"they are not":                      {nil, []string{"not in force yet", "accounts can exceed their limits", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			var logged string
			var have []policy
			p := &Watch{wanted: all, list: func(context.Context) ([]policy, error) { return have, nil },
				log: funcr.NewJSON(func(line string) { logged += line }, funcr.Options{})}
			for i, want := range tt.want {
				logged = ""
				p.look(t.Context())
				if !strings.Contains(logged, want) || want == "" && logged != "" {
					t.Errorf("check %d logged %q, want %q", i+1, logged, want)
				}
				if isError := strings.Contains(logged, `"error"`); isError != strings.Contains(want, "exceed") {
					t.Errorf("check %d logged %q, want an error only for policies that stay missing", i+1, logged)
				}
				have = tt.second
			}
		})
	}
}
