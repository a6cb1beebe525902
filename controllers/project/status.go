// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
)

// Limits on the lists in a status.
const (
	maxNamespaceCounts = 100
	maxNamed           = 10
)

func (r *Reconciler) writeStatus(ctx context.Context, project *v1.Project, d decision) (ctrl.Result, error) {
	outcomes := r.outcomes(project, d)
	summary := delivery.Summarize(outcomes)
	if len(d.problems) > 0 {
		summary.Refuse(len(d.members), d.problems[0].Reason, named(messages(d.problems), "; "), d.problems[0].Stalled)
	}
	s := &project.Status
	change := summary.Change(project.Generation, delivery.Status{Observed: &s.ObservedGeneration, Conditions: &s.Conditions, Clusters: &s.Clusters}, r.Now(),
		func(update *status.Update) {
			if news := r.writeQuotaFits(project, outcomes); news != nil {
				update.Event(*news)
			}
			countNamespaces(project, outcomes)
			s.Failures = summary.Failures
		})
	return r.written.Write(ctx, r.Output, project, change)
}

// outcomes returns one outcome for each member. The outcome contains all failures to deliver the project and its
// Secrets. The rest of the outcome is taken from the project or from the Secrets, whichever is at the later stage. If
// the Secrets are waiting for the guards, the outcome for the guards counts as the outcome for the Secrets.
func (r *Reconciler) outcomes(project *v1.Project, d decision) []delivery.Outcome {
	if len(d.projects) == 0 {
		return nil
	}
	outcomes := r.Deliveries.Outcomes(set.ID(set.Project, project.Name), d.members)
	if len(d.secrets) == 0 {
		return outcomes
	}
	for i, secrets := range r.Deliveries.Outcomes(set.ID(set.Secrets, project.Name), d.members) {
		o := &outcomes[i]
		if guards, held := d.held[secrets.Cluster]; held {
			secrets = guards
		}
		o.Failures = append(o.Failures, secrets.Failures...)
		if secrets.Stage > o.Stage {
			o.Stage, o.Reason, o.Since = secrets.Stage, secrets.Reason, secrets.Since
		}
	}
	return outcomes
}

// writeQuotaFits writes the QuotaFits condition. If the condition has changed, writeQuotaFits returns an event.
func (r *Reconciler) writeQuotaFits(project *v1.Project, outcomes []delivery.Outcome) *status.Event {
	if len(project.Spec.ResourceQuota) == 0 {
		meta.RemoveStatusCondition(&project.Status.Conditions, v1.ConditionQuotaFits)
		return nil
	}
	condition := quotaFits(outcomes)
	condition.Type, condition.ObservedGeneration, condition.LastTransitionTime = v1.ConditionQuotaFits, project.Generation, metav1.NewTime(r.Now())
	was := meta.FindStatusCondition(project.Status.Conditions, v1.ConditionQuotaFits)
	fits := condition.Status == metav1.ConditionTrue
	news := was != nil && was.Reason != condition.Reason || was == nil && !fits
	meta.SetStatusCondition(&project.Status.Conditions, condition)
	if !news {
		return nil
	}
	return &status.Event{Warning: !fits, Reason: condition.Reason, Action: "DivideQuota", Message: condition.Message}
}

// quotaFits returns the QuotaFits condition. The condition is False if any namespace has less than its default share of
// the quota, or has no share. quotaFits has no side effects.
func quotaFits(outcomes []delivery.Outcome) metav1.Condition {
	var short, spent []string
	for _, o := range outcomes {
		for _, namespace := range o.Short {
			if !slices.Contains(o.Spent, namespace) {
				short = append(short, o.Cluster+"/"+namespace)
			}
		}
		for _, namespace := range o.Spent {
			spent = append(spent, o.Cluster+"/"+namespace)
		}
	}
	const mend = ". Raise resourceQuota, lower namespaceDefaultResourceQuota, or take a namespace out of the project"
	less := "Less than the default is left for " + named(short, ", ")
	none := "Nothing is left for " + named(spent, ", ") + ", where no pod can start"
	unfit := metav1.Condition{Status: metav1.ConditionFalse, Reason: v1.ReasonQuotaSpent}
	switch {
	case len(spent) > 0 && len(short) > 0:
		unfit.Message = none + ". " + less + mend
	case len(spent) > 0:
		unfit.Message = none + mend
	case len(short) > 0:
		unfit.Reason, unfit.Message = v1.ReasonQuotaOversubscribed, less+mend
	default:
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: v1.ReasonQuotaFits, Message: "Every namespace has the whole default"}
	}
	return unfit
}

// messages returns the messages of problems. Only the first problem determines the reason, but users need to see all
// problems to fix them.
func messages(problems []index.Problem) []string {
	texts := make([]string, len(problems))
	for i, problem := range problems {
		texts[i] = problem.Message
	}
	return texts
}

// named joins the first few texts. If there are more texts, the result says so without giving their number, because an
// agent reports only the first few.
func named(texts []string, separator string) string {
	if len(texts) < maxNamed {
		return strings.Join(texts, separator)
	}
	return strings.Join(texts[:maxNamed], separator) + " and perhaps more"
}

func countNamespaces(project *v1.Project, outcomes []delivery.Outcome) {
	project.Status.NamespaceCount, project.Status.Namespaces = 0, nil
	for _, o := range outcomes { // in the same order as clusters
		project.Status.NamespaceCount += o.Namespaces
		if len(project.Status.Namespaces) < maxNamespaceCounts && o.Namespaces > 0 {
			project.Status.Namespaces = append(project.Status.Namespaces, v1.NamespaceCount{Cluster: o.Cluster, Count: o.Namespaces})
		}
	}
}
