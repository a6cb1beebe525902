// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Conditions of the kinds in this package. Cluster API copies Ready to the InfrastructureReady condition of the Cluster
// or Machine.
const (
	// ConditionReady of a DroverCluster is True when everything that Cluster API needs to reach the cluster is in
	// place, even if the cluster's agent is not connected yet. ConditionReady of a DroverMachine is True when the Host
	// has completed the bootstrap and is connected.
	ConditionReady = "Ready"
	// ConditionTasksSucceeded of a DroverMachine is present while the machine has tasks. It is False while a task is
	// running or waiting, and when a task has failed.
	ConditionTasksSucceeded = "TasksSucceeded"
	// ConditionEtcdScheduled of a DroverCluster is present while the DroverCluster has a snapshot schedule. It is False if
	// the schedule is invalid or if the provisioner cannot take snapshots. The message says what to do.
	ConditionEtcdScheduled = "EtcdScheduled"
	// ConditionPaused is True while Cluster API has paused the object.
	ConditionPaused = "Paused"
)

// Reasons of the Ready condition.
const (
	// ReasonHubUnknown means that the manager has not published the hub's address and CA. Either the manager is not
	// running, or it is older than the provisioner.
	ReasonHubUnknown = "HubUnknown"
	// ReasonProvisioned means that the infrastructure is complete.
	ReasonProvisioned = "Provisioned"
	// ReasonWaitingForOwner means that Cluster API has not set the owner reference yet.
	ReasonWaitingForOwner = "WaitingForOwner"
	// ReasonPaused means that Cluster API has paused the object or its cluster.
	ReasonPaused = "Paused"
	// ReasonClusterMissing means that no Drover Cluster has the same name as the Cluster API Cluster.
	ReasonClusterMissing = "ClusterMissing"
	// ReasonSecretConflict means that the Secret "<cluster>-kubeconfig", or "<host>-host-plan" for a machine's Host,
	// already exists and does not belong to Drover.
	ReasonSecretConflict = "SecretConflict"
	// ReasonNotPermitted means that the provisioner is not permitted to access Secrets in the workspace. The object
	// becomes Stalled.
	ReasonNotPermitted = "NotPermitted"
	// ReasonWaitingForCluster means that the DroverCluster is not provisioned yet.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonWaitingForBootstrap means that the bootstrap provider has not written its data yet.
	ReasonWaitingForBootstrap = "WaitingForBootstrap"
	// ReasonBootstrapRefused means that the bootstrap data uses a feature that Drover does not support on Hosts. The
	// message names the feature.
	ReasonBootstrapRefused = "BootstrapRefused"
	// ReasonNoHost means that the workspace has no available Host that the machine can claim. The message says why, and
	// gives the number of Hosts for each reason.
	ReasonNoHost = "NoHost"
	// ReasonBootstrapping means that the Host is running the bootstrap.
	ReasonBootstrapping = "Bootstrapping"
	// ReasonBootstrapFailed means that the bootstrap failed on the Host. The Host's status contains the last lines of the
	// output. The bootstrap is not retried. Delete the Machine so that Cluster API replaces it.
	ReasonBootstrapFailed = "BootstrapFailed"
	// ReasonHostLost means that the Host's agent is not connected.
	ReasonHostLost = "HostLost"
	// ReasonHostGone means that the Host or its instructions were deleted.
	ReasonHostGone = "HostGone"
	// ReasonReleasing means that the machine is being deleted and its Host is being cleaned.
	ReasonReleasing = "Releasing"
)

// Reasons of the TasksSucceeded condition.
const (
	// ReasonTasksSucceeded means that all tasks have succeeded.
	ReasonTasksSucceeded = "Succeeded"
	// ReasonTaskRunning means that a task is running or is waiting for the Host.
	ReasonTaskRunning = "TaskRunning"
	// ReasonTaskFailed means that a task failed. The message contains the last lines of the task's output. The task is
	// not retried.
	ReasonTaskFailed = "TaskFailed"
)

// Reasons of the EtcdScheduled condition.
const (
	// ReasonScheduled means that the schedule is valid. The latest EtcdSnapshot shows whether snapshots succeed.
	ReasonScheduled = "Scheduled"
	// ReasonScheduleInvalid means that the schedule cannot be parsed, or that it never matches a time.
	ReasonScheduleInvalid = "ScheduleInvalid"
)

// Names that the provisioner uses.
const (
	// ProviderIDPrefix is the prefix of a provider ID. It is followed by "<workspace>/<host>".
	ProviderIDPrefix = "drover://"
	// FinalizerHost prevents the removal of a deleted DroverMachine until its Host has been cleaned and released.
	FinalizerHost = Group + "/host"
	// AnnotationUpdateAttempt on a DroverMachine starts another attempt at a failed in-place update each time its value
	// changes.
	AnnotationUpdateAttempt = Group + "/update-attempt"
	// KubeconfigSecretSuffix is appended to the name of the Cluster to form the name of the kubeconfig Secret that Cluster
	// API reads.
	KubeconfigSecretSuffix = "-kubeconfig"
)
