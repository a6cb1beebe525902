// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PlanGates defines the conditions under which a Plan starts in a member.
type PlanGates struct {
	// upgradeChecks determines whether the agent checks that the cluster can be upgraded safely before the plan starts on
	// the cluster's first node. Once work for the current version has started on a node, the cluster is checked again only
	// if nodeSelector changes. With Enforce, the plan does not start on any node until all checks have passed or have been
	// overridden, and the agent usually checks again every minute. With Report, the findings are only listed in
	// status.gates. With Disabled, the cluster is not checked. The default is Enforce if the version is a Kubernetes
	// version, such as v1.36.3 or 1.36, and Disabled for any other version. If Enforce is set and the version is not a
	// Kubernetes version, the plan does not start. On the hub, setting Report or Disabled requires the "override" verb on
	// the Plan.
	// +optional
	UpgradeChecks UpgradeCheckPolicy `json:"upgradeChecks,omitempty"`
}

// UpgradeCheckPolicy determines what happens if a cluster cannot be upgraded safely.
// +kubebuilder:validation:Enum=Enforce;Report;Disabled
type UpgradeCheckPolicy string

// Values of UpgradeCheckPolicy.
const (
	UpgradeChecksEnforce  UpgradeCheckPolicy = "Enforce"
	UpgradeChecksReport   UpgradeCheckPolicy = "Report"
	UpgradeChecksDisabled UpgradeCheckPolicy = "Disabled"
)

// Override is a user's decision to ignore the findings of one check for one revision of a Plan.
type Override struct {
	// check is the name of the check, as in status.gates.findings. It must be 1 to 63 characters long. It cannot be
	// UpgradeChecks.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self != 'UpgradeChecks'",message="UpgradeChecks cannot be overridden"
	Check string `json:"check"`

	// revision is the revision for which the check is ignored, as shown in status.gates. It is a digest of the Plan's UID,
	// the version, the content of Secrets that do not set ignoreUpdates, and the spec, except for the fields paused,
	// approvals and overrides. The override has no effect on any other revision.
	// +required
	// +kubebuilder:validation:MaxLength=56
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{56}$`
	Revision string `json:"revision"`

	// clusters lists the names of up to 100 Clusters in which the findings are ignored. If the list is empty, the findings
	// are ignored in all Clusters of the Plan. In a member, an override that lists Clusters has no effect.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Clusters []string `json:"clusters,omitempty"`

	// overriddenBy is the name of the user who decides to ignore the findings. It must be the name of the user who adds
	// the entry, and must be 1 to 512 characters long.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+$`
	OverriddenBy string `json:"overriddenBy"`

	// reason says why the findings can be ignored. It must be 1 to 256 characters long.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+$`
	// +kubebuilder:validation:XValidation:rule="self.trim() != ''",message="must not be blank"
	Reason string `json:"reason"`
}

// GateStatus describes the findings and overrides of a Plan's gates.
type GateStatus struct {
	// revision is the revision that an override must name. It is empty in the Plans that the hub creates in members.
	// +optional
	Revision string `json:"revision,omitempty"`

	// started is a digest of the plan's hash and nodeSelector. It is set once a node of this member has started the plan.
	// After that, the member is checked again only if the hash or nodeSelector changes. The field is absent on the hub.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Started string `json:"started,omitempty"`

	// findings lists up to 10 findings of the upgrade checks, sorted by cluster. On the hub, it lists at most 2 findings
	// of each Cluster. The findings of a member that has completed the plan are listed only in the member.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Findings []UpgradeFinding `json:"findings,omitempty"`

	// overrides lists the overrides of the current revision.
	// +optional
	// +listType=map
	// +listMapKey=check
	// +kubebuilder:validation:MaxItems=32
	Overrides []OverrideStatus `json:"overrides,omitempty"`
}

// UpgradeFinding is a reason why a cluster cannot be upgraded safely.
type UpgradeFinding struct {
	// cluster is the name of the Cluster. The field is absent if the Plan is in a member.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// check is the name of the check.
	// +kubebuilder:validation:MaxLength=128
	Check string `json:"check"`
	// object is the object that the finding is about.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Object string `json:"object,omitempty"`
	// cause says why the upgrade is not safe.
	// +kubebuilder:validation:MaxLength=512
	Cause string `json:"cause"`
	// remedy says what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Remedy string `json:"remedy,omitempty"`
}

// OverrideStatus describes an override of the current revision.
type OverrideStatus struct {
	// check is the name of the check.
	Check string `json:"check"`
	// revision is the revision for which the check is ignored.
	Revision string `json:"revision"`
	// clusters lists the Clusters in which the findings are ignored. If the list is empty, the findings are ignored in all
	// Clusters.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	Clusters []string `json:"clusters,omitempty"`
	// overriddenBy is the user who decided to ignore the findings.
	OverriddenBy string `json:"overriddenBy"`
	// reason says why the findings are ignored.
	Reason string `json:"reason"`
	// overriddenAt is the time when Drover first observed the override.
	OverriddenAt metav1.Time `json:"overriddenAt"`
}

const (
	// MaxFindings is the maximum number of findings that a status lists.
	MaxFindings = 10
	// MaxMemberFindings is the maximum number of findings of one member that the hub keeps for a Plan.
	MaxMemberFindings = 2
	// MaxOverrideClusters is the maximum number of Clusters that an override lists.
	MaxOverrideClusters = 100

	// CheckUpgradeChecks is the name of the check in a finding that says that a cluster could not be checked. It cannot be
	// overridden, because the override would cover all checks in all clusters.
	CheckUpgradeChecks = "UpgradeChecks"

	// ReasonUpgradeUnsafe means that the upgrade checks of a member have findings, so the plan does not start in that
	// member. status.gates lists the findings. The agent usually checks again every minute.
	ReasonUpgradeUnsafe = "UpgradeUnsafe"
	// ReasonCheckOverridden is the reason of the event for an override.
	ReasonCheckOverridden = "CheckOverridden"

	// AnnotationOverrides on a Plan in a member is a comma-separated list of the checks whose findings are ignored. Drover
	// sets it if the Plan on the hub has overrides for its current revision.
	AnnotationOverrides = "plans." + Group + "/overrides"
)
