// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/drover-dev/drover/api/v1"
)

// quotaKeys is the maximum number of resources in a Drover quota.
const quotaKeys = 24

var extendedKey = regexp.MustCompile(`^(requests\.)?([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|hugepages-[0-9]+[KMGT]i)$`)

// amounts returns the limits in a quota, by Kubernetes resource name.
func (q *Quota) amounts() map[string]string {
	if q == nil {
		return nil
	}
	l := q.Limit
	all := map[string]string{
		"pods": l.Pods, "services": l.Services, "replicationcontrollers": l.ReplicationControllers, "secrets": l.Secrets, "configmaps": l.ConfigMaps,
		"persistentvolumeclaims": l.PersistentVolumeClaims, "services.nodeports": l.ServicesNodePorts, "services.loadbalancers": l.ServicesLoadBalancers,
		"requests.cpu": l.RequestsCPU, "requests.memory": l.RequestsMemory, "requests.storage": l.RequestsStorage, "limits.cpu": l.LimitsCPU, "limits.memory": l.LimitsMemory,
	}
	maps.Copy(all, l.Extended)
	maps.DeleteFunc(all, func(_, amount string) bool { return amount == "" })
	return all
}

func (l *ContainerLimit) amounts() (requests, limits map[string]string) {
	if l == nil {
		return nil, nil
	}
	empty := func(_, amount string) bool { return amount == "" }
	requests = map[string]string{"cpu": l.RequestsCPU, "memory": l.RequestsMemory}
	limits = map[string]string{"cpu": l.LimitsCPU, "memory": l.LimitsMemory}
	maps.DeleteFunc(requests, empty)
	maps.DeleteFunc(limits, empty)
	return requests, limits
}

// limit sets a project's quota and defaults as far as Drover accepts them. It reports the rest: if part of the quota
// were dropped silently, a team could use more resources than before.
func (c *conversion) limit(p project, out *v1.Project, what string) {
	whole := c.quantities(p.Spec.ResourceQuota.amounts(), what)
	share := c.quantities(p.Spec.NamespaceDefaultResourceQuota.amounts(), what)
	for _, key := range slices.Sorted(maps.Keys(whole)) {
		part, found := share[key]
		if quantity := whole[key]; !found || part.Cmp(quantity) > 0 {
			c.report.find(Decide, "The quota of this resource has no default share for each namespace, or the share exceeds "+
				"the quota. It is not exported: set resourceQuota and namespaceDefaultResourceQuota.", what,
				string(key)+" "+quantity.String())
			delete(whole, key)
			delete(share, key)
		}
	}
	out.Spec.ResourceQuota, out.Spec.NamespaceDefaultResourceQuota = whole, share
	requests, limits := p.Spec.ContainerDefaults.amounts()
	defaults := &v1.ContainerDefaults{Requests: c.quantities(requests, what), Limits: c.quantities(limits, what)}
	for _, key := range slices.Sorted(maps.Keys(defaults.Requests)) {
		request := defaults.Requests[key]
		if bound, found := defaults.Limits[key]; found && request.Cmp(bound) > 0 {
			c.report.find(Decide, "The default request exceeds the default limit. The request is not exported: set "+
				"containerDefaults.", what, string(key)+" "+request.String())
			delete(defaults.Requests, key)
		}
	}
	if len(defaults.Requests)+len(defaults.Limits) > 0 {
		out.Spec.ContainerDefaults = defaults
	}
}

// quantities parses amounts. It reports amounts that Kubernetes or Drover would reject.
func (c *conversion) quantities(amounts map[string]string, what string) corev1.ResourceList {
	var list corev1.ResourceList
	for _, key := range slices.Sorted(maps.Keys(amounts)) {
		quantity, err := resource.ParseQuantity(amounts[key])
		if err != nil || quantity.Sign() < 0 || extended(key) && !extendedKey.MatchString(key) || len(list) == quotaKeys {
			c.report.find(Decide, "Drover does not accept this amount. It is not exported.", what, key+": "+amounts[key])
			continue
		}
		if list == nil {
			list = corev1.ResourceList{}
		}
		if quantity.Format == resource.DecimalExponent { // 1e3 becomes 1k
			quantity = *resource.NewDecimalQuantity(*quantity.AsDec(), resource.DecimalSI)
		}
		list[corev1.ResourceName(key)] = resource.MustParse(quantity.String())
	}
	return list
}

// extended reports whether a key is not one of the resources that Kubernetes defines.
func extended(key string) bool {
	return !slices.Contains([]string{
		"cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory", "requests.storage", "requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
		"pods", "services", "services.nodeports", "services.loadbalancers", "replicationcontrollers", "resourcequotas", "secrets", "configmaps", "persistentvolumeclaims",
	}, key)
}
