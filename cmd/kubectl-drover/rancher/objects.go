// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rancher converts a Rancher server's objects to Drover's objects.
//
// It reports objects that have no counterpart in Drover, and decisions that users have to make.
//
// It has no side effects: the same objects always produce the same files.
package rancher

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rancher's labels and annotations that the conversion reads.
const (
	// LabelSecretProject is a label of Secrets in Rancher's own cluster. Its value is the name of the project to which
	// the Secret is copied.
	LabelSecretProject = "management.cattle.io/project-scoped-secret"
	// LabelSecretCluster is a label of Secrets that Rancher copies to a project. Its value is the name of the project's
	// cluster.
	LabelSecretCluster = "management.cattle.io/project-scoped-secret-cluster"
	// AnnotationIgnoreNamespaces is an annotation of Secrets that Rancher copies to a project. It lists namespaces to
	// which the Secret is not copied.
	AnnotationIgnoreNamespaces = "management.cattle.io/project-scoped-secret-ignore-namespaces"
	// LabelProjectID is a label of Namespaces in a member. Its value identifies the namespace's project.
	LabelProjectID = "field.cattle.io/projectId"

	labelSystemProject = "authz.management.cattle.io/system-project"
	localCluster       = "local"
)

// Objects holds the objects that were read from a Rancher server. They contain only the fields that the conversion
// uses, and no tokens, passwords or keys.
type Objects struct {
	Clusters        []Cluster
	Projects        []Project
	RoleTemplates   []RoleTemplate
	ClusterBindings []ClusterBinding
	ProjectBindings []ProjectBinding
	Users           []User
	UserAttributes  []UserAttribute
	GlobalRoles     []GlobalRole
	GlobalBindings  []GlobalBinding
	Provisioned     []Provisioned
	// Plans are the Plans in Rancher's own cluster.
	Plans []Plan
	// Secrets are the Secrets that Rancher copies to projects. They contain no values unless the user requested the
	// values.
	Secrets []corev1.Secret
	// SecretsForbidden is true if the caller is not allowed to list Secrets.
	SecretsForbidden bool
	// Unread lists the kinds that could not be read completely.
	Unread []Unread
}

// Unread is a kind or an object that could not be read.
type Unread struct {
	What string
	Why  string
}

// Cluster is a management.cattle.io/v3 Cluster.
type Cluster struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		DisplayName              string     `json:"displayName"`
		EnableNetworkPolicy      bool       `json:"enableNetworkPolicy"`
		AgentEnvVars             []struct{} `json:"agentEnvVars"` // the values may be secret
		LocalClusterAuthEndpoint struct {
			Enabled bool `json:"enabled"`
		} `json:"localClusterAuthEndpoint"`
		Customization       *struct{} `json:"clusterAgentDeploymentCustomization"`
		PodSecurityTemplate string    `json:"defaultPodSecurityAdmissionConfigurationTemplateName"`
		ProjectMembersRole  string    `json:"defaultClusterRoleForProjectMembers"`
		AKSConfig           *struct{} `json:"aksConfig"`
		EKSConfig           *struct{} `json:"eksConfig"`
		GKEConfig           *struct{} `json:"gkeConfig"`
		AliConfig           *struct{} `json:"aliConfig"`
	} `json:"spec"`
}

// Project is a management.cattle.io/v3 Project.
type Project struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		DisplayName                   string          `json:"displayName"`
		ClusterName                   string          `json:"clusterName"`
		ResourceQuota                 *Quota          `json:"resourceQuota"`
		NamespaceDefaultResourceQuota *Quota          `json:"namespaceDefaultResourceQuota"`
		ContainerDefaults             *ContainerLimit `json:"containerDefaultResourceLimit"`
	} `json:"spec"`
	Status struct {
		BackingNamespace string `json:"backingNamespace"`
	} `json:"status"`
}

// Quota holds amounts. Its fields have the same names as in Rancher.
type Quota struct {
	Limit QuotaLimit `json:"limit"`
}

// QuotaLimit is Rancher's ResourceQuotaLimit.
type QuotaLimit struct {
	Pods                   string            `json:"pods"`
	Services               string            `json:"services"`
	ReplicationControllers string            `json:"replicationControllers"`
	Secrets                string            `json:"secrets"`
	ConfigMaps             string            `json:"configMaps"`
	PersistentVolumeClaims string            `json:"persistentVolumeClaims"`
	ServicesNodePorts      string            `json:"servicesNodePorts"`
	ServicesLoadBalancers  string            `json:"servicesLoadBalancers"`
	RequestsCPU            string            `json:"requestsCpu"`
	RequestsMemory         string            `json:"requestsMemory"`
	RequestsStorage        string            `json:"requestsStorage"`
	LimitsCPU              string            `json:"limitsCpu"`
	LimitsMemory           string            `json:"limitsMemory"`
	Extended               map[string]string `json:"extended"`
}

// ContainerLimit is Rancher's ContainerResourceLimit.
type ContainerLimit struct {
	RequestsCPU    string `json:"requestsCpu"`
	RequestsMemory string `json:"requestsMemory"`
	LimitsCPU      string `json:"limitsCpu"`
	LimitsMemory   string `json:"limitsMemory"`
}

// RoleTemplate is a management.cattle.io/v3 RoleTemplate.
type RoleTemplate struct {
	metav1.ObjectMeta     `json:"metadata"`
	DisplayName           string              `json:"displayName"`
	Rules                 []rbacv1.PolicyRule `json:"rules"`
	Builtin               bool                `json:"builtin"`
	External              bool                `json:"external"`
	Locked                bool                `json:"locked"`
	Administrative        bool                `json:"administrative"`
	ClusterCreatorDefault bool                `json:"clusterCreatorDefault"`
	ProjectCreatorDefault bool                `json:"projectCreatorDefault"`
	Context               string              `json:"context"`
	RoleTemplateNames     []string            `json:"roleTemplateNames"`
}

// Subject is the subject of a Rancher binding.
type Subject struct {
	UserName           string `json:"userName"`
	UserPrincipalName  string `json:"userPrincipalName"`
	GroupName          string `json:"groupName"`
	GroupPrincipalName string `json:"groupPrincipalName"`
	ServiceAccount     string `json:"serviceAccount"`
}

// ClusterBinding is a management.cattle.io/v3 ClusterRoleTemplateBinding.
type ClusterBinding struct {
	metav1.ObjectMeta `json:"metadata"`
	Subject           `json:",inline"`
	ClusterName       string `json:"clusterName"`
	RoleTemplateName  string `json:"roleTemplateName"`
}

// ProjectBinding is a management.cattle.io/v3 ProjectRoleTemplateBinding.
type ProjectBinding struct {
	metav1.ObjectMeta `json:"metadata"`
	Subject           `json:",inline"`
	ProjectName       string `json:"projectName"`
	RoleTemplateName  string `json:"roleTemplateName"`
}

// User is a management.cattle.io/v3 User without the password hash.
type User struct {
	metav1.ObjectMeta `json:"metadata"`
	Username          string   `json:"username"`
	PrincipalIDs      []string `json:"principalIds"`
	Enabled           *bool    `json:"enabled"`
}

// UserAttribute is a management.cattle.io/v3 UserAttribute. It holds the data that a provider returned about a user at
// the last login. The keys are spelled as in Rancher.
type UserAttribute struct {
	metav1.ObjectMeta `json:"metadata"`
	GroupPrincipals   map[string]struct {
		Items []GroupPrincipal `json:"Items"`
	} `json:"GroupPrincipals"`
	ExtraByProvider map[string]map[string][]string `json:"ExtraByProvider"`
}

// GroupPrincipal is a group that a user belonged to at the last login.
type GroupPrincipal struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	LoginName string `json:"loginName"`
}

// GlobalRole is a management.cattle.io/v3 GlobalRole.
type GlobalRole struct {
	metav1.ObjectMeta     `json:"metadata"`
	DisplayName           string   `json:"displayName"`
	InheritedClusterRoles []string `json:"inheritedClusterRoles"`
}

// GlobalBinding is a management.cattle.io/v3 GlobalRoleBinding.
type GlobalBinding struct {
	metav1.ObjectMeta `json:"metadata"`
	Subject           `json:",inline"`
	GlobalRoleName    string `json:"globalRoleName"`
}

// Provisioned is a provisioning.cattle.io/v1 Cluster.
type Provisioned struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		RKEConfig *struct{} `json:"rkeConfig"`
	} `json:"spec"`
	Status struct {
		ClusterName string `json:"clusterName"`
	} `json:"status"`
}

// oldestFirst sorts objects by age, so that new objects do not change the names of older ones.
func oldestFirst[T any](objects []T, of func(T) metav1.ObjectMeta) []T {
	return slices.SortedStableFunc(slices.Values(objects), func(a, b T) int {
		x, y := of(a), of(b)
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Namespace, y.Namespace),
			cmp.Compare(x.Name, y.Name))
	})
}
