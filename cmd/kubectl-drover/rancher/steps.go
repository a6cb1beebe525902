// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
)

// steps adds the next steps to the report. Only the names of Rancher projects must be quoted in the commands. All other
// names are DNS labels that the export has chosen.
func (c *conversion) steps() {
	add := func(what string, commands ...string) {
		c.report.Steps = append(c.report.Steps, Step{what, commands})
	}
	add("Read this report and make the decisions below. Set the names of principals in `principals.yaml`, then export again with `--principals` and that file.")
	c.signInStep(add)
	c.applyStep(add)
	if len(c.hidden) > 0 {
		add("Apply the Secrets separately. Only you can read them. Do not commit them, and delete the folder afterwards.",
			"kubectl apply -k "+SecretsFolder)
	}
	clusters := c.inOrder()
	var imports []string
	for _, cl := range clusters {
		imports = append(imports,
			fmt.Sprintf("kubectl drover import %s -w %s --to-context "+
				"CONTEXT-OF-%s", cl.name, c.Workspace, strings.ToUpper(cl.name)))
	}
	if len(imports) > 0 {
		add("Import the members one by one. Drover's agent runs beside Rancher's agent, in its own namespace. CONTEXT-OF-… "+
			"is a kubeconfig context that connects directly to the member.", imports...)
	}
	c.labelStep(add)
}

// signInStep describes how the users in the bindings sign in.
func (c *conversion) signInStep(add func(string, ...string)) {
	var providers, users []string
	for _, p := range c.mapping.Providers {
		providers = append(providers, code(p.Name))
	}
	for id := range c.subjects.count {
		if name, local := strings.CutPrefix(c.subjects.known[id].effective(), localProvider+":"); local && userName.MatchString(name) {
			users = append(users, "kubectl drover user create "+name)
		}
	}
	if len(providers) > 0 {
		slices.Sort(providers)
		add("Set up sign-in to the hub. The bindings use the names of these AuthProviders: " + strings.Join(slices.Compact(providers), ", ") + ". Use these names, or change the names of `providers` in `principals.yaml`.")
	}
	if len(users) > 0 {
		slices.Sort(users)
		add("Create the Users who have a password. Rancher's passwords are not exported.", slices.Compact(users)...)
	}
}

// wholeLimit is the maximum number of objects for one run of kustomize. The duration of a run grows faster than the
// square of this number: a run with 1,000 objects takes 1 s, and a run with 10,000 objects takes minutes.
const wholeLimit = 2000

func (c *conversion) applyStep(add func(string, ...string)) {
	namespace := "kubectl create namespace " + c.Workspace
	if len(c.out) <= wholeLimit {
		add("Create the workspace on the hub, and deliver this folder with GitOps or apply it. You can apply it repeatedly.",
			namespace, "kubectl apply -k .")
		return
	}
	commands := []string{namespace, "kubectl apply -k roles"}
	if slices.ContainsFunc(c.out, func(o Output) bool { return strings.HasPrefix(o.Path, "global/") }) {
		commands = append(commands, "kubectl apply -k global")
	}
	add("Create the workspace on the hub, and deliver this folder with GitOps or apply it. You can apply it repeatedly. It has too many objects for one run of kustomize: apply each folder separately, "+
		"and configure one GitOps source for `roles` and one for each folder in `clusters`.", append(commands, `for cluster in clusters/*/; do kubectl apply -k "$cluster"; done`)...)
}

// labelStep describes how to add namespaces to Projects if the export could not read the namespaces of a project.
func (c *conversion) labelStep(add func(string, ...string)) {
	var commands []string
	for _, p := range c.inside {
		if _, read := c.Members[p.cluster.Name]; !read && dnsLabel.MatchString(p.Name) {
			commands = append(commands,
				fmt.Sprintf("kubectl --context CONTEXT-OF-%s label namespaces -l %s=%s "+
					"%s=%s", strings.ToUpper(p.cluster.name), LabelProjectID, p.Name, v1.LabelProject, p.name))
		}
	}
	if len(commands) > 0 {
		slices.Sort(commands)
		add("Add the namespaces to their Projects. Only the members know the namespaces of a project. Label the namespaces there, or export with `--member-context`, which lists them in the Projects.", commands...)
	}
}
