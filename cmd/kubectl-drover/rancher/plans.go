// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Plan is an upgrade.cattle.io/v1 Plan. Fields that have the same meaning in Drover use Drover's types.
type Plan struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		PlanPace `json:",inline"`
		PlanWork `json:",inline"`
	} `json:"spec"`
}

// PlanPace contains the fields of a Plan that specify versions, nodes and times.
type PlanPace struct {
	Concurrency           int64                 `json:"concurrency"`
	JobActiveDeadlineSecs *int64                `json:"jobActiveDeadlineSecs"`
	NodeSelector          *metav1.LabelSelector `json:"nodeSelector"`
	Channel               string                `json:"channel"`
	Version               string                `json:"version"`
	Exclusive             bool                  `json:"exclusive"`
	Window                *PlanWindow           `json:"window"`
	PostCompleteDelay     string                `json:"postCompleteDelay"`
}

// PlanWork contains the fields of a Plan that specify the work on a node.
type PlanWork struct {
	ServiceAccountName string                        `json:"serviceAccountName"`
	Secrets            []v1.PlanSecret               `json:"secrets"`
	Tolerations        []corev1.Toleration           `json:"tolerations"`
	Prepare            *v1.PlanContainer             `json:"prepare"`
	Upgrade            *v1.PlanContainer             `json:"upgrade"`
	Cordon             bool                          `json:"cordon"`
	Drain              *PlanDrain                    `json:"drain"`
	ImagePullSecrets   []corev1.LocalObjectReference `json:"imagePullSecrets"`
	PriorityClassName  string                        `json:"priorityClassName"`
	PostCompleteLabels map[string]v1.LabelTemplate   `json:"postCompleteLabels"`
}

// PlanWindow is system-upgrade-controller's TimeWindowSpec.
type PlanWindow struct {
	Days      []string `json:"days"`
	StartTime string   `json:"startTime"`
	EndTime   string   `json:"endTime"`
	TimeZone  string   `json:"timeZone"`
}

// PlanDrain is system-upgrade-controller's DrainSpec.
type PlanDrain struct {
	// Timeout is a duration, or a number of nanoseconds that may be too large for an IntOrString.
	Timeout                  any                   `json:"timeout"`
	GracePeriod              *int32                `json:"gracePeriod"`
	DeleteLocalData          *bool                 `json:"deleteLocalData"`
	DeleteEmptydirData       *bool                 `json:"deleteEmptydirData"`
	IgnoreDaemonSets         *bool                 `json:"ignoreDaemonSets"`
	Force                    bool                  `json:"force"`
	DisableEviction          bool                  `json:"disableEviction"`
	SkipWaitForDeleteTimeout int32                 `json:"skipWaitForDeleteTimeout"`
	PodSelector              *metav1.LabelSelector `json:"podSelector"`
}

// plans exports the Plans that were read from members. It also exports the Plans in Rancher's own cluster if that
// cluster is exported.
func (c *conversion) plans() {
	taken := names{}
	if local, exported := c.chosen[localCluster]; exported {
		c.plansOf(local, c.in.Plans, taken)
	} else {
		for _, p := range c.in.Plans {
			c.report.find(LeftOut, "It is for nodes of Rancher's own cluster, which is not exported.",
				describe("Plan", p.ObjectMeta, ""), "")
		}
	}
	for _, cl := range c.inOrder() {
		if cl.Name != localCluster {
			c.plansOf(cl, c.Members[cl.Name].Plans, taken)
		}
	}
}

// inOrder returns the exported clusters, sorted by their names in Drover.
func (c *conversion) inOrder() []cluster {
	var all []cluster
	for _, cl := range c.chosen {
		all = append(all, cl)
	}
	slices.SortFunc(all, func(a, b cluster) int { return strings.Compare(a.name, b.name) })
	return all
}

func (c *conversion) plansOf(cl cluster, plans []Plan, taken names) {
	for _, p := range oldestFirst(plans, func(p Plan) metav1.ObjectMeta { return p.ObjectMeta }) {
		what := describe("Plan", p.ObjectMeta, "") + " of " + cl.name
		if c.deleted(what, p.ObjectMeta) {
			continue
		}
		name := taken.take(join(cl.name, p.Name), p.Namespace+p.Name)
		if problem := planProblem(p); problem != "" {
			c.report.find(Decide, "Drover does not accept this Plan. It is not exported.", what, problem)
			continue
		}
		out := c.convertPlan(p, what)
		out.Name, out.Spec.ClusterName = name, cl.name
		c.add(path.Join(cl.folder(), "plans", name+".yaml"), what, out)
		c.report.find(Different, "The exported Plan is paused, because Drover does not know which nodes are done and would "+
			"process all of them again. Delete or pause system-upgrade-controller's Plan before you resume this one.", what,
			name)
		if len(p.Spec.Secrets)+len(p.Spec.ImagePullSecrets) > 0 {
			c.report.find(Decide, "The Plan names Secrets: create them in the workspace, with the label "+
				"plans.cluster.drover.dev/use: \"true\".", what, name)
		}
	}
}

func planProblem(p Plan) string {
	switch {
	case p.Spec.Upgrade == nil || p.Spec.Upgrade.Image == "":
		return "it has no upgrade"
	case p.Spec.Version == "" && p.Spec.Channel == "":
		return "it has neither version nor channel"
	case p.Spec.Drain != nil && p.Spec.Drain.DeleteLocalData != nil && p.Spec.Drain.DeleteEmptydirData != nil:
		return "its drain has deleteLocalData and deleteEmptydirData"
	}
	return ""
}

func (c *conversion) convertPlan(p Plan, what string) *v1.Plan {
	s := p.Spec
	out := &v1.Plan{TypeMeta: typeMeta("Plan"), ObjectMeta: c.meta("")}
	out.Spec.Paused, out.Spec.Exclusive, out.Spec.NodeSelector, out.Spec.JobActiveDeadlineSecs = true, s.Exclusive, s.NodeSelector, s.JobActiveDeadlineSecs
	out.Spec.Version, out.Spec.Channel = s.Version, s.Channel
	out.Spec.Upgrade, out.Spec.Prepare, out.Spec.Cordon, out.Spec.Tolerations = *s.Upgrade, s.Prepare, s.Cordon, s.Tolerations
	out.Spec.Secrets, out.Spec.PriorityClassName, out.Spec.PostCompleteLabels = s.Secrets, s.PriorityClassName, s.PostCompleteLabels
	if s.Concurrency > 1 {
		concurrency := intstr.FromInt32(int32(min(s.Concurrency, 100000)))
		out.Spec.Concurrency = &concurrency
	}
	for _, secret := range s.ImagePullSecrets {
		out.Spec.ImagePullSecrets = append(out.Spec.ImagePullSecrets, v1.PullSecret{Name: secret.Name})
	}
	if s.PostCompleteDelay != "" {
		out.Spec.PostCompleteDelay = readDuration(&c.report, s.PostCompleteDelay, "postCompleteDelay", what)
	}
	if s.ServiceAccountName != "" {
		c.report.find(Different, "Its ServiceAccount is not exported: Drover's own, drover-plan, may read Plans and Nodes. "+
			"Set serviceAccountName if the image needs more rights.", what, s.ServiceAccountName)
	}
	if s.Drain != nil {
		out.Spec.Drain = convertDrain(&c.report, *s.Drain, what)
	}
	if s.Window != nil {
		out.Spec.Window = convertWindow(&c.report, *s.Window, what)
	}
	return out
}

func convertDrain(report *Report, d PlanDrain, what string) *v1.Drain {
	out := &v1.Drain{
		GracePeriod: d.GracePeriod, IgnoreDaemonSets: d.IgnoreDaemonSets, DeleteEmptydirData: d.DeleteEmptydirData, Force: d.Force,
		DisableEviction: d.DisableEviction, SkipWaitForDeleteTimeout: d.SkipWaitForDeleteTimeout, PodSelector: d.PodSelector,
	}
	if d.DeleteLocalData != nil {
		out.DeleteEmptydirData = d.DeleteLocalData
	}
	if d.GracePeriod != nil && *d.GracePeriod < 0 {
		out.GracePeriod = nil // in kubectl, this value selects the pod's own grace period
	}
	switch timeout := d.Timeout.(type) {
	case nil:
	case int64:
		out.Timeout = readDuration(report, fmt.Sprintf("%dns", timeout), "drain.timeout", what)
	case float64:
		out.Timeout = readDuration(report, fmt.Sprintf("%.0fns", timeout), "drain.timeout", what)
	default:
		out.Timeout = readDuration(report, fmt.Sprint(timeout), "drain.timeout", what)
	}
	return out
}

// readDuration parses a duration and checks that Drover accepts it.
func readDuration(report *Report, text, field, what string) *metav1.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		report.find(Decide, "A duration of the Plan cannot be parsed. The Plan is exported without it: set it.", what,
			field+": "+text)
		return nil
	}
	return &metav1.Duration{Duration: d}
}

var (
	hour     = regexp.MustCompile(`^(?i)([01]?[0-9]|2[0-3])(?::([0-5][0-9]))?(?::00)? ?(am|pm)?$`)
	weekDays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}
)

// clock parses a time of day in the formats that system-upgrade-controller accepts: 17:00, 5pm and 5:30 PM.
func clock(text string) (string, bool) {
	parts := hour.FindStringSubmatch(text)
	if parts == nil {
		return "", false
	}
	layouts := []string{"15:04", "15"}
	if parts[3] != "" {
		layouts = []string{"3:04pm", "3pm"}
	}
	short := parts[1]
	if parts[2] != "" {
		short += ":" + parts[2]
	}
	for _, layout := range layouts {
		if at, err := time.Parse(layout, short+strings.ToLower(parts[3])); err == nil {
			return at.Format("15:04"), true
		}
	}
	return "", false
}

// convertWindow converts a time window. If the window cannot be parsed, the Plan is paused until a user has corrected
// the window, so that nothing runs outside the intended times.
func convertWindow(report *Report, w PlanWindow, what string) *v1.TimeWindow {
	const noWindow = "The window of the Plan cannot be parsed. The Plan is exported without it: set it before you resume the Plan."
	out := &v1.TimeWindow{TimeZone: w.TimeZone}
	if _, err := out.Location(); err != nil { // the hub would reject the whole Plan because of this window
		report.find(Decide, noWindow, what, w.TimeZone)
		return nil
	}
	for _, day := range w.Days {
		known := slices.ContainsFunc(weekDays, func(d string) bool { return len(day) >= 2 && strings.HasPrefix(strings.ToLower(day), d[:2]) }) || len(day) == 1 && day >= "0" && day <= "6"
		if !known {
			report.find(Decide, noWindow, what, day)
			return nil
		}
		if !slices.Contains(out.Days, v1.Day(day)) {
			out.Days = append(out.Days, v1.Day(day))
		}
	}
	for _, t := range []struct {
		text string
		at   *string
	}{{w.StartTime, &out.StartTime}, {w.EndTime, &out.EndTime}} {
		if t.text == "" {
			continue
		}
		at, read := clock(t.text)
		if !read {
			report.find(Decide, noWindow, what, t.text)
			return nil
		}
		*t.at = at
	}
	if out.StartTime != "" && out.StartTime == out.EndTime {
		out.StartTime, out.EndTime = "", ""
	}
	return out
}
