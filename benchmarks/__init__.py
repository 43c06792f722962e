"""What is measured, and how; results with device, versions and commit are under results/."""
