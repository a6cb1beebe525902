// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestPlans(t *testing.T) {
	const upgrade = "  upgrade: {image: rancher/k3s-upgrade}\n"
	tests := map[string]struct{ spec, want, reported string }{
		"the least": {"  version: v1.33.4+k3s1\n" + upgrade, "clusterName: edge\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1.33.4+k3s1\n", "The exported Plan is paused"},
		"a drain, its time in nanoseconds": {"  version: v1\n  drain: {timeout: 300000000000, deleteLocalData: false, ignoreDaemonSets: true, gracePeriod: -1}\n" + upgrade,
			"clusterName: edge\ndrain:\n  deleteEmptydirData: false\n  ignoreDaemonSets: true\n  timeout: 5m0s\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", ""},
		"a drain of defaults stays one": {"  version: v1\n  drain: {}\n" + upgrade, "clusterName: edge\ndrain: {}\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", ""},
		"an empty securityContext, which takes privileges away, stays": {"  version: v1\n  upgrade: {image: x, securityContext: {}}\n",
			"clusterName: edge\npaused: true\nupgrade:\n  image: x\n  securityContext: {}\nversion: v1\n", ""},
		"a window in words": {"  channel: https://x/y\n  window: {days: [monday, su, '6'], startTime: 5pm, endTime: '11:30 PM', timeZone: UTC}\n" + upgrade,
			"channel: https://x/y\nclusterName: edge\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nwindow:\n  days:\n  - monday\n  - su\n  - \"6\"\n  endTime: \"23:30\"\n  startTime: \"17:00\"\n  timeZone: UTC\n", ""},
		"a window that cannot be read":                                  {"  version: v1\n  window: {startTime: noon}\n" + upgrade, "clusterName: edge\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", "window of the Plan cannot be parsed"},
		"a window by a machine's clock":                                 {"  version: v1\n  window: {startTime: 5pm, timeZone: Local}\n" + upgrade, "clusterName: edge\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", "window of the Plan cannot be parsed"},
		"a window on a day that cannot be read, which would be any day": {"  version: v1\n  window: {days: [lundi]}\n" + upgrade, "clusterName: edge\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", "window of the Plan cannot be parsed"},
		"a time that cannot be read":                                    {"  version: v1\n  drain: {timeout: soon}\n" + upgrade, "clusterName: edge\ndrain: {}\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", "duration of the Plan cannot be parsed"},
		"its ServiceAccount is Drover's":                                {"  version: v1\n  serviceAccountName: system-upgrade\n" + upgrade, "clusterName: edge\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", "Its ServiceAccount is not exported"},
		"its Secrets are to be made":                                    {"  version: v1\n  secrets: [{name: s, path: /x}]\n" + upgrade, "clusterName: edge\npaused: true\nsecrets:\n- name: s\n  path: /x\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", "names Secrets"},
		"several nodes at once":                                         {"  version: v1\n  concurrency: 3\n  cordon: true\n" + upgrade, "clusterName: edge\nconcurrency: 3\ncordon: true\npaused: true\nupgrade:\n  image: rancher/k3s-upgrade\nversion: v1\n", ""},
		"without a version nothing is exported":                         {upgrade, "", "Drover does not accept this Plan"},
		"without an upgrade nothing is exported":                        {"  version: v1\n", "", "Drover does not accept this Plan"},
		"both of what only one can be":                                  {"  version: v1\n  drain: {deleteLocalData: true, deleteEmptydirData: true}\n" + upgrade, "", "Drover does not accept this Plan"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte("metadata: {name: k3s, namespace: system-upgrade}\nspec:\n"+tt.spec), &u.Object); err != nil {
				t.Fatal(err)
			}
			var plans []Plan
			into(t, &plans, u)
			c := newConversion(Objects{}, Options{Workspace: "team-a"})
			c.plansOf(cluster{name: "edge"}, plans, names{})
			got := ""
			for _, o := range c.out {
				text, err := object(o)
				if err != nil {
					t.Fatal(err)
				}
				_, spec, _ := strings.Cut(string(text), "\nspec:\n")
				for line := range strings.Lines(spec) {
					got += strings.TrimPrefix(line, "  ")
				}
			}
			if got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
			reported := ""
			for _, f := range c.report.Findings {
				reported += f.Reason + "\n"
			}
			if !strings.Contains(reported, tt.reported) {
				t.Errorf("reported %q, want %q", reported, tt.reported)
			}
		})
	}
}

func TestTimesOfDay(t *testing.T) {
	for text, want := range map[string]string{
		"17:00": "17:00", "5pm": "17:00", "5 PM": "17:00", "5:30am": "05:30", "12am": "00:00", "12pm": "12:00", "9": "09:00", "09:05": "09:05", "17:00:00": "17:00", "0:00": "00:00",
		"": "", "25:00": "", "17pm": "", "noon": "", "5:3": "", "05:30\n": "",
	} {
		if got, _ := clock(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
