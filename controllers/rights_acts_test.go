// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// act does one random thing to the hub or the member, and returns a description.
func (r *rightsWorld) act() string {
	r.t.Helper()
	choices := []struct {
		weight int
		do     func() string
	}{
		{5, r.actTemplate}, {5, r.actClusterBinding}, {6, r.actProjectBinding}, {4, r.actProject},
		{3, r.actNamespace}, {1, r.actCluster}, {2, r.actDrift}, {1, r.actRestart}, {2, r.actWait},
	}
	sum := 0
	for _, c := range choices {
		sum += c.weight
	}
	pick := r.random.IntN(sum)
	for _, c := range choices {
		if pick -= c.weight; pick < 0 {
			done := c.do()
			if r.cut != nil {
				r.cut.since = append(r.cut.since, r.now.clone())
			}
			return done
		}
	}
	panic("the weights do not add up")
}

func (r *rightsWorld) some(names []string) string { return names[r.random.IntN(len(names))] }

func (r *rightsWorld) rarely(n int) bool { return r.random.IntN(n) == 0 }

func (r *rightsWorld) numbered(kind string, n int) string {
	return fmt.Sprintf("%s%d", kind, r.random.IntN(n))
}

// template returns the name of one of a few templates. Most templates with "…c…" have the context Cluster, and most
// others the context Project.
func (r *rightsWorld) template(context v1.RoleContext) string {
	names := clusterRoles
	if context == v1.ContextProject != r.rarely(10) {
		names = projectRoles
	}
	return r.workspace + r.some(names)
}

func (r *rightsWorld) context() v1.RoleContext {
	if r.rarely(2) {
		return v1.ContextProject
	}
	return v1.ContextCluster
}

func (r *rightsWorld) rule(context v1.RoleContext) rbacv1.PolicyRule {
	if context == v1.ContextCluster && r.rarely(6) {
		return rbacv1.PolicyRule{NonResourceURLs: []string{r.some([]string{"/logs/*", "/logs/kubelet.log", "/version"})}, Verbs: []string{"get"}}
	}
	rule := rbacv1.PolicyRule{
		APIGroups: []string{"", r.some([]string{"apps", "batch", "*"})},
		Resources: []string{r.some([]string{"pods", "secrets", "nodes", "*"}), r.some([]string{"pods", "deployments", "services"})},
		Verbs:     []string{r.some([]string{"get", "list", "*"}), r.some([]string{"get", "delete"})},
	}
	if r.rarely(4) {
		rule.ResourceNames = []string{r.some([]string{"one", "two"})}
	}
	return rule
}

func (r *rightsWorld) actTemplate() string {
	context := r.context()
	name := r.template(context)
	if _, exists := r.now.templates[name]; exists && r.rarely(9) {
		r.delete(&v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}})
		delete(r.now.templates, name)
		return "delete template " + name
	}
	return r.putTemplate(name, context)
}

func (r *rightsWorld) putTemplate(name string, context v1.RoleContext) string {
	spec := v1.RoleTemplateSpec{Context: context}
	if r.rarely(8) {
		spec.External = "theirs"
	} else {
		spec.Rules = []rbacv1.PolicyRule{r.rule(context)}
		if r.rarely(3) {
			if parent := r.template(r.context()); parent != name { // this is refused; a longer cycle is not
				spec.Inherits = []string{parent}
			}
		}
	}
	template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	r.put(template, func() { template.Spec = spec })
	r.now.templates[name] = spec
	return fmt.Sprintf("template %s: %+v", name, spec)
}

func (r *rightsWorld) subject() v1.Subject {
	if r.rarely(2) {
		return v1.Subject{Kind: v1.SubjectGroup, Name: r.some([]string{"github:dev", "github:dev", "github:ops", "github:ops", "github:alice"})}
	}
	return v1.Subject{Kind: v1.SubjectUser, Name: r.some([]string{"github:alice", "github:bob", "github:carol", "github:carol", "github:dev"})}
}

func (r *rightsWorld) target() v1.ClusterTarget {
	switch r.random.IntN(8) {
	case 0:
		return v1.ClusterTarget{ClusterName: "edge"}
	case 1:
		return v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{}}
	case 2:
		return v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	}
	return v1.ClusterTarget{ClusterName: "prod"}
}

// soon is the minimum duration of the shortest bindings.
const soon = 2 * time.Second

func (r *rightsWorld) expiry() *metav1.Time {
	in := []time.Duration{-time.Hour, time.Hour, soon, soon + time.Second}
	if !r.rarely(5) {
		return nil
	}
	end := metav1.NewTime(time.Now().Add(in[r.random.IntN(len(in))]).Truncate(time.Second))
	return &end
}

func (r *rightsWorld) actClusterBinding() string {
	name := r.numbered("c", 6)
	if _, exists := r.now.clusterBindings[name]; exists && r.rarely(5) {
		r.delete(&v1.ClusterRoleTemplateBinding{ObjectMeta: r.meta(name)})
		delete(r.now.clusterBindings, name)
		return "delete crtb " + name
	}
	spec := v1.ClusterRoleTemplateBindingSpec{ClusterTarget: r.target(), RoleTemplateName: r.template(v1.ContextCluster), Subject: r.subject(), ExpiresAt: r.expiry()}
	b := &v1.ClusterRoleTemplateBinding{ObjectMeta: r.meta(name)}
	r.put(b, func() { b.Spec = spec })
	r.now.clusterBindings[name] = spec
	return fmt.Sprintf("crtb %s: %+v", name, spec)
}

func (r *rightsWorld) actProjectBinding() string {
	name := r.numbered("b", 6)
	if _, exists := r.now.projectBindings[name]; exists && r.rarely(5) {
		r.delete(&v1.ProjectRoleTemplateBinding{ObjectMeta: r.meta(name)})
		delete(r.now.projectBindings, name)
		return "delete prtb " + name
	}
	spec := v1.ProjectRoleTemplateBindingSpec{ProjectName: r.some(projectNames), RoleTemplateName: r.template(v1.ContextProject), Subject: r.subject(), ExpiresAt: r.expiry()}
	b := &v1.ProjectRoleTemplateBinding{ObjectMeta: r.meta(name)}
	r.put(b, func() { b.Spec = spec })
	r.now.projectBindings[name] = spec
	return fmt.Sprintf("prtb %s: %+v", name, spec)
}

func (r *rightsWorld) actProject() string {
	name := r.some(projectNames)
	if _, exists := r.now.projects[name]; exists && r.rarely(6) {
		r.delete(&v1.Project{ObjectMeta: r.meta(name)})
		delete(r.now.projects, name)
		return "delete project " + name
	}
	spec := v1.ProjectSpec{ClusterTarget: r.target(), NetworkIsolation: v1.IsolationNone}
	for _, namespace := range listedNames {
		if r.rarely(2) {
			spec.Namespaces = append(spec.Namespaces, namespace)
		}
	}
	p := &v1.Project{ObjectMeta: r.meta(name)}
	r.put(p, func() { p.Spec = spec })
	r.now.projects[name] = p
	return fmt.Sprintf("project %s: %+v", name, spec)
}

// actNamespace moves a namespace in the member, as a user there can.
func (r *rightsWorld) actNamespace() string {
	name, project := r.some(movedNames), r.some(append(slices.Clone(projectNames), "", "none"))
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	r.change(r.member.Client, namespace, func() {
		delete(namespace.Labels, v1.LabelProject)
		if project != "" {
			namespace.Labels[v1.LabelProject] = project
		}
	})
	r.now.labelled[name] = project
	return fmt.Sprintf("move namespace %s to %q", name, project)
}

func (r *rightsWorld) actCluster() string {
	env := r.some([]string{"prod", "test"})
	cluster := &v1.Cluster{ObjectMeta: r.meta("prod")}
	r.change(r.Client, cluster, func() { cluster.Labels = map[string]string{"env": env} })
	r.now.cluster = map[string]string{"env": env}
	return "label the Cluster env=" + env
}

// actDrift widens, empties or deletes a delivered object.
func (r *rightsWorld) actDrift() string {
	var all []client.Object
	for _, list := range []client.ObjectList{&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}} {
		if err := r.member.Client.List(r.t.Context(), list, client.HasLabels{v1.LabelSet}); err != nil {
			r.t.Fatal(err)
		}
		all = append(all, items(r.t, list)...)
	}
	if len(all) == 0 {
		return "nothing is there to be changed"
	}
	r.disturbed = true
	object := all[r.random.IntN(len(all))]
	if r.rarely(3) {
		if err := client.IgnoreNotFound(r.member.Client.Delete(r.t.Context(), object)); err != nil {
			r.t.Fatal(err)
		}
		return "a user deletes " + object.GetName()
	}
	r.change(r.member.Client, object, func() {
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			o.Rules = []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}
		case *rbacv1.ClusterRoleBinding:
			o.Subjects = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "github:carol"}}
		case *rbacv1.RoleBinding:
			o.Subjects = nil
		}
	})
	return "a user changes " + object.GetName()
}

// actRestart restarts the agent.
func (r *rightsWorld) actRestart() string {
	r.agent.stop()
	r.lead()
	return "the agent starts again"
}

// actWait waits until the bindings that end soon have ended.
func (r *rightsWorld) actWait() string {
	var ends []*metav1.Time
	for _, b := range r.now.clusterBindings {
		ends = append(ends, b.ExpiresAt)
	}
	for _, b := range r.now.projectBindings {
		ends = append(ends, b.ExpiresAt)
	}
	r.eventually(func(context.Context) error {
		for _, end := range ends {
			if end != nil && time.Until(end.Time) > 0 && time.Until(end.Time) < time.Minute {
				return errors.New("a binding is in force")
			}
		}
		return nil
	})
	return "wait for ends"
}

// put creates an object on the hub, or changes it if it exists.
func (r *rightsWorld) put(object client.Object, change func()) {
	r.t.Helper()
	change()
	err := r.Client.Create(r.t.Context(), object)
	if apierrors.IsAlreadyExists(err) {
		r.change(r.Client, object, change)
	} else if err != nil {
		r.t.Fatal(err)
	}
}

// change changes an object that the controllers or the agent may be writing.
func (r *rightsWorld) change(c client.Client, object client.Object, change func()) {
	r.t.Helper()
	r.eventually(func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change()
		return c.Update(ctx, object)
	})
}
