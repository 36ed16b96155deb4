"""What silos are asked beside training: releases of statistics before a run, one file each, of which `pooled` is what
they share; and `evaluated`, histograms of held-out records between the phases of any method."""
