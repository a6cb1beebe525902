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

// Options selects the objects to export.
type Options struct {
	// Workspace is the workspace that the objects are exported to.
	Workspace string
	// Clusters lists the clusters to export, by name or display name in Rancher. If Clusters is empty, all clusters
	// except Rancher's own are exported.
	Clusters []string
	// Mapping is the Mapping that a user has completed.
	Mapping Mapping
	// SecretValues makes the export include the values of the projects' Secrets.
	SecretValues bool
	// Members contains the objects that were read from members, by the clusters' names in Rancher.
	Members map[string]Member
}

// Member contains the objects that were read from one member.
type Member struct {
	// Namespaces lists the namespaces of each project, by the projects' names in Rancher.
	Namespaces map[string][]string
	Plans      []Plan
}

// Output is a Drover object and the file that it is written to.
type Output struct {
	// Path is the slash-separated path of the file, relative to the folder.
	Path string
	// Origin is the Rancher object that was converted.
	Origin string
	Object runtime.Object
}

// Result is the result of an export.
type Result struct {
	Objects []Output
	// Secrets are kept separate from the other objects, because they contain secret values.
	Secrets []Output
	Report  Report
	Mapping Mapping
}

// Convert converts the objects of a Rancher server.
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
	chosen   map[string]cluster // exported clusters by name in Rancher
	inside   map[string]project // exported projects by "cluster:project"
	// identifiers of clusters, and of projects in the form "cluster:project", that are not exported and have already
	// been reported
	other map[string]bool
}

// subjects holds the principals that bindings refer to.
type subjects struct {
	given map[string]Principal  // principals from the Mapping that a user has completed, by name in Rancher
	known map[string]*Principal // principals by name in Rancher
	count map[string]int        // the number of bindings for each principal
}

type roles struct {
	all   map[string]RoleTemplate
	names map[string]string // names in Drover by name in Rancher
	state map[string]int    // states by name in Drover
}

type cluster struct {
	Cluster
	name string // the name of the Cluster
}

type project struct {
	Project
	cluster cluster
	name    string // the name of the Project
}

func newConversion(in Objects, o Options) *conversion {
	c := &conversion{
		in: in, Options: o, people: newPeople(in.Users, in.UserAttributes), report: Report{Workspace: o.Workspace, Exported: map[string]int{}},
		subjects: subjects{given: map[string]Principal{}, known: map[string]*Principal{}, count: map[string]int{}},
		roles:    roles{all: map[string]RoleTemplate{}, names: map[string]string{}, state: map[string]int{}},
		chosen:   map[string]cluster{}, inside: map[string]project{}, other: map[string]bool{}, files: map[string]bool{},
	}
	for _, p := range o.Mapping.Principals {
		if p.Name != "" { // names that were not entered are derived again
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

// add adds an object to the export. Users choose the names of objects, so two objects of different kinds in the same
// folder can have the same name. In that case, the first object gets the plain file name.
func (c *conversion) add(file, origin string, object runtime.Object) {
	if c.files[file] {
		file = strings.TrimSuffix(file, ".yaml") + "." + strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind) + ".yaml"
	}
	c.files[file] = true
	c.out = append(c.out, Output{Path: file, Origin: origin, Object: object})
}

func (cl cluster) folder() string { return path.Join("clusters", cl.name) }

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: kind}
}

func (c *conversion) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.Workspace, Name: name}
}

// describe formats the name of a Rancher object for users.
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

// Wants reports whether to export a cluster.
func (o Options) Wants(cl Cluster) bool {
	if len(o.Clusters) == 0 {
		return cl.Name != localCluster
	}
	return slices.Contains(o.Clusters, cl.Name) || slices.Contains(o.Clusters, cl.Spec.DisplayName)
}

// ClusterNamed returns the name of the cluster with the given name or display name. It returns "" unless exactly one
// cluster matches.
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

// Missing returns the requested clusters that do not exist in Rancher.
func (o Options) Missing(in Objects) []string {
	var missing []string
	for _, name := range o.Clusters {
		if !slices.ContainsFunc(in.Clusters, func(cl Cluster) bool { return cl.Name == name || cl.Spec.DisplayName == name }) {
			missing = append(missing, name)
		}
	}
	return missing
}

// LabelFrom is the label of Clusters that were exported from Rancher. The cluster roles that Rancher's global roles
// grant apply only to Clusters with this label.
const LabelFrom = "cluster.drover.dev/from-rancher"

func fromRancher() map[string]string { return map[string]string{LabelFrom: "true"} }

// deleted reports whether an object is being deleted. Such objects are not exported.
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
		// Reserve the name even if the cluster is not exported, so that names do not change when members are exported
		// one by one.
		name := taken.take(cmp.Or(label(cl.Spec.DisplayName), label(cl.Name)), cl.Name)
		if !c.Wants(cl) {
			if cl.Name == localCluster && len(c.Clusters) == 0 {
				c.report.find(LeftOut, "Rancher's own cluster is only exported with --cluster local.", what, "")
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
		if cl.Name != localCluster { // global roles do not apply to Rancher's own cluster
			out.Labels = fromRancher()
		}
		c.add(path.Join(found.folder(), "cluster.yaml"), what, out)
		c.reportCluster(found, what)
	}
	for _, p := range c.in.Provisioned {
		if cl, exported := c.chosen[p.Status.ClusterName]; exported && p.Spec.RKEConfig != nil {
			c.report.find(NoCounterpart, "Rancher creates and upgrades the nodes of this cluster. Drover only imports the cluster: decide what manages its machines before you remove Rancher. "+
				"A Plan can upgrade Kubernetes. The distribution itself can take etcd snapshots.", describe("provisioning.cattle.io Cluster", p.ObjectMeta, ""), "Cluster "+cl.name)
		}
	}
}

// reportCluster reports the properties of a Rancher cluster that the exported Cluster lacks.
func (c *conversion) reportCluster(cl cluster, what string) {
	s := cl.Spec
	if s.DisplayName != cl.name {
		c.report.find(Different, "It has another name in Drover, because names must be unique and in lower case.", what,
			"Cluster "+cl.name)
	}
	for _, line := range []struct {
		applies bool
		class   Class
		reason  string
	}{
		{len(s.AgentEnvVars) > 0, Decide, "Rancher's agent has custom environment variables, such as a proxy. Their values may be secret and are not exported: set spec.agent.env if the agent needs them."},
		{s.Customization != nil, Decide, "Rancher's agent has custom tolerations, affinity or resources: set them in spec.agent if the agent needs them."},
		{s.LocalClusterAuthEndpoint.Enabled, Decide, "The authorized cluster endpoint is enabled. Kubeconfigs that use it stop working when Rancher's agent is removed."},
		{s.PodSecurityTemplate != "", NoCounterpart, "The Pod Security admission template is a setting of the member's API server and stays there. In Drover, set podSecurity in a Project."},
		{s.ProjectMembersRole != "", NoCounterpart, "Members of projects do not get this role in the cluster. Bind a role to them if they need it."},
		{s.AKSConfig != nil || s.EKSConfig != nil || s.GKEConfig != nil || s.AliConfig != nil, NoCounterpart,
			"Rancher may change this cluster at its provider. Drover only imports the cluster."},
	} {
		if line.applies {
			c.report.find(line.class, line.reason, what, "")
		}
	}
}

// projectID returns the identifier that bindings and namespaces use to refer to a project.
func projectID(p Project) string {
	return cmp.Or(p.Spec.ClusterName, p.Namespace) + ":" + p.Name
}

func (c *conversion) projects() {
	taken := names{}
	for _, p := range oldestFirst(c.in.Projects, func(p Project) metav1.ObjectMeta { return p.ObjectMeta }) {
		what := describe("Project", p.ObjectMeta, p.Spec.DisplayName)
		cl, exported := c.chosen[p.Namespace]
		switch {
		// CVE-2022-31247: an object in one cluster's namespace must not apply to another cluster
		case p.Spec.ClusterName != "" && p.Spec.ClusterName != p.Namespace:
			c.report.find(LeftOut, "It is in the namespace of another cluster than the one that it names.", what,
				p.Spec.ClusterName)
			c.other[projectID(p)] = true
			continue
		case !exported:
			if !c.other[p.Namespace] {
				c.report.find(LeftOut, "Its cluster does not exist.", what, p.Namespace)
			}
			c.other[projectID(p)] = true
			continue
		case p.Labels[labelSystemProject] == "true":
			c.report.find(NoCounterpart, "System namespaces cannot be in a Project. Use a ClusterRoleTemplateBinding, or a "+
				"RoleBinding in the member, in place of a binding in this project.", what, "")
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

// namespaceLimit is the maximum number of namespaces in a Project.
const namespaceLimit = 256

func (c *conversion) convertProject(p project, what string) *v1.Project {
	out := &v1.Project{TypeMeta: typeMeta("Project"), ObjectMeta: c.meta(p.name)}
	out.Spec.ClusterName = p.cluster.name
	if p.cluster.Spec.EnableNetworkPolicy {
		out.Spec.NetworkIsolation = v1.IsolationProject
		c.report.find(Different, "Rancher isolates all projects of the cluster. In Drover, each Project sets "+
			"networkIsolation. Ingress controllers need the label cluster.drover.dev/ingress on their namespace.", what, "")
	}
	c.limit(p, out, what)
	if member, read := c.Members[p.cluster.Name]; read {
		for _, namespace := range slices.Sorted(slices.Values(member.Namespaces[p.Name])) {
			if namespace == "default" || strings.HasPrefix(namespace, "kube-") || strings.HasPrefix(namespace, "drover-") {
				c.report.find(LeftOut, "This namespace belongs to the cluster and cannot be in a Project.", what, namespace)
				continue
			}
			out.Spec.Namespaces = append(out.Spec.Namespaces, namespace)
		}
		if more := len(out.Spec.Namespaces) - namespaceLimit; more > 0 {
			c.report.find(Decide, "It has more than 256 namespaces. The Project lists none of them: label them in the member.",
				what, fmt.Sprintf("kubectl label namespaces -l %s=%s %s=%s", LabelProjectID, p.Name, v1.LabelProject, p.name))
			out.Spec.Namespaces = nil
		}
	}
	return out
}
