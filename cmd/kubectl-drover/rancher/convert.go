// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Options choose the objects of an export.
type Options struct {
	// Workspace that the objects are for.
	Workspace string
	// Clusters by their name in Rancher, or as it is displayed. Without any, all but Rancher's own.
	Clusters []string
	// Mapping that a person has completed.
	Mapping Mapping
	// SecretValues exports the Secrets of projects, with their values.
	SecretValues bool
	// Members has the objects that were read from members, by the name of the cluster in Rancher.
	Members map[string]Member
}

// Member has the objects that were read from a member.
type Member struct {
	// Namespaces by the name of their project in Rancher.
	Namespaces map[string][]string
	Plans      []Plan
}

// Output is an object of Drover, and the file that it is written to.
type Output struct {
	// Path of the file below the folder, with slashes.
	Path string
	// Origin in Rancher.
	Origin string
	Object runtime.Object
}

// Result is what an export writes.
type Result struct {
	Objects []Output
	// Secrets are apart: they have values.
	Secrets []Output
	Report  Report
	Mapping Mapping
}

// Convert converts what was read from a Rancher server.
func Convert(in Objects, o Options) Result {
	c := newConversion(in, o)
	for _, u := range in.Unread {
		c.report.find(Unreadable, u.Why, u.What, "")
	}
	c.clusters()
	c.projects()
	c.bindings()
	c.plans()
	c.secrets()
	c.reportPrincipals()
	c.steps()
	c.report.order()
	c.mapping.order()
	byPath := func(a, b Output) int { return cmp.Compare(a.Path, b.Path) }
	slices.SortFunc(c.out, byPath)
	slices.SortFunc(c.hidden, byPath)
	for _, output := range slices.Concat(c.out, c.hidden) {
		c.report.Exported[output.Object.GetObjectKind().GroupVersionKind().Kind]++
	}
	return Result{Objects: c.out, Secrets: c.hidden, Report: c.report, Mapping: c.mapping}
}

// conversion is the state of one export.
type conversion struct {
	in Objects
	Options
	people *people
	out    []Output
	hidden []Output
	report Report
	files  map[string]bool // paths of the written files

	mapping  Mapping
	subjects subjects
	roles    roles
	chosen   map[string]cluster // exported clusters by their name in Rancher
	inside   map[string]project // exported projects by "cluster:project"
	other    map[string]bool    // clusters, and projects as "cluster:project", that are not exported and were reported where they are
}

// subjects are the principals that bindings are for.
type subjects struct {
	given map[string]Principal  // in the Mapping that a person has completed
	known map[string]*Principal // by their name in Rancher
	count map[string]int        // bindings of each
}

// roles are the role templates.
type roles struct {
	all   map[string]RoleTemplate
	names map[string]string // in Drover, by those in Rancher
	state map[string]int    // by the name in Drover
}

// cluster is a cluster that is exported.
type cluster struct {
	Cluster
	name string // of the Cluster
}

// project is a project that is exported.
type project struct {
	Project
	cluster cluster
	name    string // of the Project
}

func newConversion(in Objects, o Options) *conversion {
	c := &conversion{
		in: in, Options: o, people: newPeople(in.Users, in.UserAttributes), report: Report{Workspace: o.Workspace, Exported: map[string]int{}},
		subjects: subjects{given: map[string]Principal{}, known: map[string]*Principal{}, count: map[string]int{}},
		roles:    roles{all: map[string]RoleTemplate{}, names: map[string]string{}, state: map[string]int{}},
		chosen:   map[string]cluster{}, inside: map[string]project{}, other: map[string]bool{}, files: map[string]bool{},
	}
	for _, p := range o.Mapping.Principals {
		if p.Name != "" { // an entry without a name is decided anew
			c.subjects.given[p.Rancher] = p
		}
	}
	taken := names{}
	for _, rt := range oldestFirst(in.RoleTemplates, func(r RoleTemplate) metav1.ObjectMeta { return r.ObjectMeta }) {
		c.roles.all[rt.Name] = rt
		wanted := cmp.Or(label(rt.DisplayName), rt.Name)
		if rt.Builtin {
			wanted = rt.Name
		}
		c.roles.names[rt.Name] = taken.take(join("rancher", wanted), rt.Name)
		if contextOf(rt) == "" {
			c.roles.names[rt.Name+inClusters] = taken.take(join("rancher", wanted, "cluster"), rt.Name)
		}
	}
	return c
}

// add adds an object to the export. If objects of two kinds have the same name in a folder, the first kind gets the
// plain file name: users choose the names.
func (c *conversion) add(file, origin string, object runtime.Object) {
	if c.files[file] {
		file = strings.TrimSuffix(file, ".yaml") + "." + strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind) + ".yaml"
	}
	c.files[file] = true
	c.out = append(c.out, Output{Path: file, Origin: origin, Object: object})
}

// folder of a cluster.
func (cl cluster) folder() string { return path.Join("clusters", cl.name) }

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: kind}
}

func (c *conversion) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.Workspace, Name: name}
}

// describe names an object of Rancher for a reader.
func describe(kind string, meta metav1.ObjectMeta, display string) string {
	name := meta.Name
	if meta.Namespace != "" {
		name = meta.Namespace + "/" + name
	}
	if display != "" && display != meta.Name {
		name += " (" + display + ")"
	}
	return kind + " " + name
}

// Wants reports whether a cluster is to be exported.
func (o Options) Wants(cl Cluster) bool {
	if len(o.Clusters) == 0 {
		return cl.Name != localCluster
	}
	return slices.Contains(o.Clusters, cl.Name) || slices.Contains(o.Clusters, cl.Spec.DisplayName)
}

// ClusterNamed returns the name of the only cluster that has it, or is displayed by it; "" if there is none, or
// several.
func ClusterNamed(clusters []Cluster, name string) string {
	found := ""
	for _, cl := range clusters {
		switch {
		case cl.Name == name:
			return name
		case cl.Spec.DisplayName == name && found != "":
			return ""
		case cl.Spec.DisplayName == name:
			found = cl.Name
		}
	}
	return found
}

// Missing returns the wanted clusters that Rancher does not have.
func (o Options) Missing(in Objects) []string {
	var missing []string
	for _, name := range o.Clusters {
		if !slices.ContainsFunc(in.Clusters, func(cl Cluster) bool { return cl.Name == name || cl.Spec.DisplayName == name }) {
			missing = append(missing, name)
		}
	}
	return missing
}

// LabelFrom is on Clusters that come from Rancher: what its global roles grant in all clusters is for those, and not
// for others of the workspace.
const LabelFrom = "cluster.drover.dev/from-rancher"

func fromRancher() map[string]string { return map[string]string{LabelFrom: "true"} }

// deleted reports an object that is being deleted, which is not exported.
func (c *conversion) deleted(what string, meta metav1.ObjectMeta) bool {
	if meta.DeletionTimestamp == nil {
		return false
	}
	c.report.find(LeftOut, "Rancher is deleting it.", what, "")
	return true
}

func (c *conversion) clusters() {
	taken := names{}
	for _, cl := range oldestFirst(c.in.Clusters, func(cl Cluster) metav1.ObjectMeta { return cl.ObjectMeta }) {
		what := describe("Cluster", cl.ObjectMeta, cl.Spec.DisplayName)
		// A name is taken whether the cluster is exported or not, so that members can be exported one by one.
		name := taken.take(cmp.Or(label(cl.Spec.DisplayName), label(cl.Name)), cl.Name)
		if !c.Wants(cl) {
			if cl.Name == localCluster && len(c.Clusters) == 0 {
				c.report.find(LeftOut, "Rancher's own cluster is exported only if it is asked for with --cluster local.", what, "")
			}
			c.other[cl.Name] = true
			continue
		}
		if c.deleted(what, cl.ObjectMeta) {
			c.other[cl.Name] = true
			continue
		}
		found := cluster{cl, name}
		c.chosen[cl.Name] = found
		out := &v1.Cluster{TypeMeta: typeMeta("Cluster"), ObjectMeta: c.meta(name)}
		if cl.Name != localCluster { // what global roles grant in all clusters does not reach it
			out.Labels = fromRancher()
		}
		c.add(path.Join(found.folder(), "cluster.yaml"), what, out)
		c.reportCluster(found, what)
	}
	for _, p := range c.in.Provisioned {
		if cl, exported := c.chosen[p.Status.ClusterName]; exported && p.Spec.RKEConfig != nil {
			c.report.find(NoCounterpart, "Rancher makes and upgrades the nodes of this cluster. Drover imports it and does not: decide who owns its machines before Rancher goes. "+
				"Kubernetes can be upgraded by a Plan, snapshots of etcd by the distribution itself.", describe("provisioning.cattle.io Cluster", p.ObjectMeta, ""), "Cluster "+cl.name)
		}
	}
}

// reportCluster says what a cluster has in Rancher that its Cluster has not.
func (c *conversion) reportCluster(cl cluster, what string) {
	s := cl.Spec
	if s.DisplayName != cl.name {
		c.report.find(Different, "It has another name in Drover: lower case, and one of its own.", what, "Cluster "+cl.name)
	}
	for _, line := range []struct {
		applies bool
		class   Class
		reason  string
	}{
		{len(s.AgentEnvVars) > 0, Decide, "Rancher's agent has variables of its own, such as a proxy. Their values may be secret, and are not exported: set spec.agent.env where the agent needs them."},
		{s.Customization != nil, Decide, "Rancher's agent has tolerations, affinity or resources of its own: set them in spec.agent where the agent needs them."},
		{s.LocalClusterAuthEndpoint.Enabled, Decide, "The authorized cluster endpoint is on. Kubeconfigs that lead to it stop working when Rancher's agent goes."},
		{s.PodSecurityTemplate != "", NoCounterpart, "A template of Pod Security admission is a setting of the member's API server, and stays there. In Drover a Project has podSecurity."},
		{s.ProjectMembersRole != "", NoCounterpart, "Members of projects get no role in the cluster by that. Bind one to them where they need it."},
		{s.AKSConfig != nil || s.EKSConfig != nil || s.GKEConfig != nil || s.AliConfig != nil, NoCounterpart,
			"Rancher may change this cluster at its provider. Drover imports it and does not."},
	} {
		if line.applies {
			c.report.find(line.class, line.reason, what, "")
		}
	}
}

// projectID is how bindings and namespaces name a project.
func projectID(p Project) string {
	return cmp.Or(p.Spec.ClusterName, p.Namespace) + ":" + p.Name
}

func (c *conversion) projects() {
	taken := names{}
	for _, p := range oldestFirst(c.in.Projects, func(p Project) metav1.ObjectMeta { return p.ObjectMeta }) {
		what := describe("Project", p.ObjectMeta, p.Spec.DisplayName)
		cl, exported := c.chosen[p.Namespace]
		switch {
		case p.Spec.ClusterName != "" && p.Spec.ClusterName != p.Namespace: // CVE-2022-31247: what lies in one cluster's namespace says nothing of another
			c.report.find(LeftOut, "It names another cluster than that whose namespace it is in.", what, p.Spec.ClusterName)
			c.other[projectID(p)] = true
			continue
		case !exported:
			if !c.other[p.Namespace] {
				c.report.find(LeftOut, "Its cluster does not exist.", what, p.Namespace)
			}
			c.other[projectID(p)] = true
			continue
		case p.Labels[labelSystemProject] == "true":
			c.report.find(NoCounterpart, "Namespaces of the system are in no Project. A binding there may become a ClusterRoleTemplateBinding, or a RoleBinding in the member.", what, "")
			c.other[projectID(p)] = true
			continue
		case c.deleted(what, p.ObjectMeta):
			c.other[projectID(p)] = true
			continue
		}
		found := project{p, cl, taken.take(join(cl.name, cmp.Or(label(p.Spec.DisplayName), p.Name)), p.Name)}
		c.inside[projectID(p)] = found
		c.add(path.Join(cl.folder(), "projects", found.name+".yaml"), what, c.convertProject(found, what))
	}
}

// namespaceLimit is how many namespaces a Project can list.
const namespaceLimit = 256

func (c *conversion) convertProject(p project, what string) *v1.Project {
	out := &v1.Project{TypeMeta: typeMeta("Project"), ObjectMeta: c.meta(p.name)}
	out.Spec.ClusterName = p.cluster.name
	if p.cluster.Spec.EnableNetworkPolicy {
		out.Spec.NetworkIsolation = v1.IsolationProject
		c.report.find(Different, "Rancher isolates projects in the whole cluster. The Project does by networkIsolation; connections from ingress controllers need the label cluster.drover.dev/ingress on their namespace.", what, "")
	}
	c.limit(p, out, what)
	if member, read := c.Members[p.cluster.Name]; read {
		for _, namespace := range slices.Sorted(slices.Values(member.Namespaces[p.Name])) {
			if namespace == "default" || strings.HasPrefix(namespace, "kube-") || strings.HasPrefix(namespace, "drover-") {
				c.report.find(LeftOut, "This namespace belongs to the cluster, and cannot be in a Project.", what, namespace)
				continue
			}
			out.Spec.Namespaces = append(out.Spec.Namespaces, namespace)
		}
		if more := len(out.Spec.Namespaces) - namespaceLimit; more > 0 {
			c.report.find(Decide, "It has more than 256 namespaces. None is listed in the Project: label them in the member.", what, fmt.Sprintf("kubectl label namespaces -l %s=%s %s=%s", LabelProjectID, p.Name, v1.LabelProject, p.name))
			out.Spec.Namespaces = nil
		}
	}
	return out
}
