// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

const planBase = `
clusterSelector: {matchLabels: {env: prod}}
nodeSelector: {matchExpressions: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]}
version: v1.36.3+k3s1
concurrency: 1
cordon: true
upgrade: {image: rancher/k3s-upgrade}
rollout: {maxConcurrentClusters: 5, maxFailedClusters: 1, waves: [{name: canary, clusterSelector: {matchLabels: {ring: canary}}, soak: 1h}, {name: rest}]}
window: {days: [Sat, Sun], startTime: "02:00", endTime: "06:00", timeZone: Europe/Berlin}
`

func TestPlanSpec(t *testing.T) {
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	plan := func(t *testing.T, change string) *unstructured.Unstructured {
		t.Helper()
		o := object(t, namespace, "Plan", planBase)
		var changed map[string]any
		if err := yaml.Unmarshal([]byte(change), &changed); err != nil {
			t.Fatal(err)
		}
		spec := o.Object["spec"].(map[string]any)
		for key, value := range changed {
			if value == nil {
				delete(spec, key)
				continue
			}
			spec[key] = value
		}
		return o
	}
	for name, change := range map[string]string{
		"the plan of the design":                 `{}`,
		"a member by name":                       `{clusterSelector: null, clusterName: prod-eu}`,
		"neither is for the cluster itself":      `{clusterSelector: null, rollout: null}`,
		"a percentage of nodes":                  `{concurrency: 25%}`,
		"all nodes at once":                      `{concurrency: 100%}`,
		"a channel":                              `{version: null, channel: "https://update.k3s.io/v1-release/channels/stable"}`,
		"days as system-upgrade-controller":      `{window: {days: [monday, tu, "0"]}}`,
		"a window over midnight":                 `{window: {startTime: "22:00", endTime: "04:00"}}`,
		"every option of drain":                  `{drain: {timeout: 5m, gracePeriod: 30, ignoreDaemonSets: false, deleteEmptydirData: false, force: true, disableEviction: true, skipWaitForDeleteTimeout: 60, podSelector: {matchLabels: {a: b}}}}`,
		"a Secret, labels and a service account": `{secrets: [{name: s, path: /etc/s, ignoreUpdates: true, defaultMode: 256}], postCompleteLabels: {example.com/version: "$(LATEST_VERSION)"}, serviceAccountName: upgrade}`,
		"no retries":                             `{retries: {limit: 0}}`,
	} {
		t.Run(name+" is taken", func(t *testing.T) {
			if err := env.Client.Create(t.Context(), plan(t, change), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
	for name, tt := range map[string]struct{ change, want string }{
		"both a name and a selector":      {`{clusterName: a}`, "not both"},
		"a rollout without members":       {`{clusterSelector: null}`, "rollout requires"},
		"neither version nor channel":     {`{version: null}`, "set version or channel"},
		"a channel that is no URL":        {`{version: null, channel: stable}`, "must be an http or https URL"},
		"no concurrency":                  {`{concurrency: 0}`, "a number of at least 1"},
		"more than all nodes":             {`{concurrency: 101%}`, "a number of at least 1"},
		"a day that is none":              {`{window: {days: [Caturday]}}`, "must be a day of the week"},
		"a time zone that is none":        {`{window: {timeZone: Europe/Atlantis}}`, "time zone"},
		"the zone of a machine":           {`{window: {timeZone: Local}}`, "names such as Local"},
		"a name for a machine's zone":     {`{window: {timeZone: localtime}}`, "timeZone"},
		"a zone that counts leap seconds": {`{window: {timeZone: right/UTC}}`, "timeZone"},
		"an offset":                       {`{window: {timeZone: UTC+1}}`, "time zone"},
		"a zone without a name":           {`{window: {timeZone: ""}}`, "should match"},
		"a window without length":         {`{window: {startTime: "02:00", endTime: "02:00"}}`, "must differ"},
		"an hour that is none":            {`{window: {startTime: "25:00"}}`, "must be a time from 00:00 to 23:59"},
		"no image":                        {`{upgrade: {}}`, "image"},
		"an environment that Drover sets": {
			`{upgrade: {image: a, envs: [{name: SYSTEM_UPGRADE_NODE_NAME, value: b}]}}`, "reserved for Drover",
		},
		"a path that leaves its folder": {`{secrets: [{name: s, path: ../../host}]}`, "must not contain"},
		"labels of Kubernetes": {
			`{postCompleteLabels: {node-role.kubernetes.io/master: "true"}}`, "cannot be set",
		},
		"labels of other plans":     {`{postCompleteLabels: {plan.cluster.drover.dev/b: "x"}}`, "cannot be set"},
		"a soak that is negative":   {`{rollout: {waves: [{name: a, soak: -1h}]}}`, "(ms|s|m|h)"},
		"a delay without a unit":    {`{postCompleteDelay: "5"}`, "(ms|s|m|h)"},
		"a timeout in nanoseconds":  {`{drain: {timeout: 300000000000}}`, "string"},
		"two waves of a name":       {`{rollout: {waves: [{name: a}, {name: a}]}}`, "Duplicate value"},
		"a selector without values": {`{nodeSelector: {matchExpressions: [{key: a, operator: In}]}}`, "require values"},
		"too many retries":          {`{retries: {limit: 21}}`, "less than or equal to 20"},
	} {
		t.Run(name+" is refused", func(t *testing.T) {
			err := env.Client.Create(t.Context(), plan(t, tt.change), client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("refused with %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("what the documents show is taken", func(t *testing.T) {
		for _, file := range []string{"../../docs/guide/plans.md", "../../docs/spec/plan.md"} {
			for _, o := range shown(t, file) {
				o.SetNamespace(namespace)
				if err := env.Client.Create(t.Context(), o, client.DryRunAll); err != nil {
					t.Errorf("%s: %v, want that the API server takes it", file, err)
				}
			}
		}
	})
	t.Run("a plan is given its defaults", func(t *testing.T) {
		created := &v1.Plan{}
		o := plan(t, `{rollout: {}, retries: {}, drain: {}, concurrency: null}`)
		if err := env.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), created); err != nil {
			t.Fatal(err)
		}
		s := created.Spec
		if s.Rollout.MaxConcurrentClusters != 1 || s.Concurrency.IntValue() != 1 || *s.JobActiveDeadlineSecs != 900 || *s.Retries.Limit != 2 || !*s.Drain.IgnoreDaemonSets {
			t.Errorf("defaults are %+v", s)
		}
	})
}

// shown returns the objects in the YAML blocks of a document.
func shown(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, rest := range strings.Split(string(text), "```yaml\n")[1:] {
		block, _, _ := strings.Cut(rest, "```")
		for document := range strings.SplitSeq(block, "\n---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			objects = append(objects, o)
		}
	}
	if len(objects) == 0 {
		t.Fatalf("%s shows nothing", file)
	}
	return objects
}
